"""An MCP server as the provider, over streamable HTTP."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from schemas.conversation import HostedTool
from schemas.events import WebSource
from services.frontend.hosted.contract import ProviderError
from services.frontend.hosted.mcp_provider import McpProvider
from services.frontend.hosted.provider import provider_of
from services.runtime.config.frontend import FrontendConfig

TIDES = {"url": "https://example.org/tides", "title": "Tides", "content": "High water is at noon."}


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """The URL of a server."""
    from mcp.server.mcpserver import MCPServer

    app = MCPServer("web")

    @app.tool()
    def find(query: str) -> dict[str, Any]:
        return {"results": [TIDES], "query": query}

    @app.tool()
    def read(url: str) -> str:
        if "missing" in url:
            raise ValueError("no such page")
        return f"# Page\nof {url}"

    listening = socket.create_server(("127.0.0.1", 0))
    uvicorn_server = uvicorn.Server(
        uvicorn.Config(app.streamable_http_app(), log_level="error", lifespan="on")
    )
    serving_task = asyncio.create_task(uvicorn_server.serve([listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    uvicorn_server.should_exit = True
    await serving_task


def config(url: str, **settings: Any) -> FrontendConfig:
    given = {"web_search_tool": "find", "web_fetch_tool": "read", **settings}
    return FrontendConfig(web_provider=url, web_provider_protocol="mcp", web_fetch=True, **given)


async def test_tools_of_the_server_search_and_fetch(server: str) -> None:
    provider = provider_of(config(server))
    assert isinstance(provider, McpProvider)
    search, fetch = (
        HostedTool("web_search", allowed_domains=["example.org"]),
        HostedTool("web_fetch"),
    )
    assert await provider.run(search, "tides") == [
        WebSource(TIDES["url"], "Tides", TIDES["content"])
    ]
    page = await provider.run(fetch, "https://example.org/")
    assert page == [WebSource("https://example.org/", "Page", "# Page\nof https://example.org/")]
    with pytest.raises(ProviderError) as caught:
        await provider.run(fetch, "https://example.org/missing")
    assert caught.value.code == "url_not_accessible"
    with pytest.raises(ProviderError) as caught:
        await provider_of(config(server, web_search_tool="no")).run(search, "tides")
    assert caught.value.code == "unavailable"

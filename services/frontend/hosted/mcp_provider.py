"""Calls an MCP server over streamable HTTP as the provider: one of its tools searches, another one
may fetch.

Needs `turnwire[mcp]`. Each call is a session of its own, so that a server may restart between two
calls.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent
from typing_extensions import override

from schemas.conversation import HostedTool
from schemas.events import WebSource
from services.frontend.hosted.contract import Provider, ProviderError, argument_name
from services.runtime.config.base import read_key

_URL = re.compile(r"https?://[^\s<>\"'()\[\]{}]+[^\s<>\"'()\[\]{}.,;:!?]")
_MAX_LINKS = 20
_MAX_TITLE = 100
_TEXTS = ("text", "content", "snippet", "description", "markdown")
_AGES = ("age", "page_age", "published", "date")


class McpProvider(Provider):
    """An MCP server as a provider. `tools`: the names of its tools, by the kind of hosted tool."""

    def __init__(self, url: str, key_file: str | None, tools: dict[str, str]) -> None:
        self._url = url
        self._key_file = key_file
        self._tools = tools

    @override
    async def run(self, tool: HostedTool, argument: str) -> list[WebSource]:
        result = await self._call(tool, argument)
        texts = [part.text for part in result.content if isinstance(part, TextContent)]
        if result.is_error:
            code = "url_not_accessible" if tool.kind == "web_fetch" else "unavailable"
            raise ProviderError(code, "\n".join(texts)[:1000])
        if tool.kind == "web_fetch":
            return [WebSource(argument, title_of(texts), "\n".join(texts))]
        return _search_results(tool, result.structured_content, texts)

    async def _call(self, tool: HostedTool, argument: str) -> CallToolResult:
        """Calls the server's tool in a session of its own. Raises ProviderError."""
        headers = {}
        if self._key_file is not None:
            headers["authorization"] = f"Bearer {read_key(self._key_file)}"
        arguments = {argument_name(tool): argument}
        try:
            async with (
                httpx2.AsyncClient(headers=headers, timeout=None, trust_env=False) as http,
                Client(streamable_http_client(self._url, http_client=http)) as client,
            ):
                return await client.call_tool(self._tools[tool.kind], arguments)
        except* (MCPError, httpx2.HTTPError) as group:
            raise ProviderError("unavailable", "; ".join(map(str, leaves(group)))) from group

    @override
    async def close(self) -> None:
        """Does nothing: every call closes its own connection."""


def _search_results(tool: HostedTool, structured: Any, texts: list[str]) -> list[WebSource]:
    """Returns the results of a search: of its structured answer, or of JSON in its texts, or of
    plain text."""
    sources = sources_in(structured)
    if not sources:
        for text in texts:
            sources += sources_in(decode_json(text))
    if sources or not texts:
        return sources
    if tool.allowed_domains or tool.blocked_domains:
        raise ProviderError(
            "unavailable", "its results are plain text, which cannot be limited to domains"
        )
    return sources_of_text("\n".join(texts))


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yields the exceptions in a group and in its inner groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def decode_json(text: str) -> Any:
    """Returns the value of JSON text; None for other text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def sources_in(value: Any) -> list[WebSource]:
    """Returns the results in a JSON value: a list of objects with URLs, an object with such a list
    as a member, or one object with a URL."""
    if _has_url(value):
        return [_source(value)]
    if isinstance(value, dict):
        value = next((inner for inner in value.values() if isinstance(inner, list)), [])
    if not isinstance(value, list):
        return []
    return [_source(item) for item in value if _has_url(item)]


def _has_url(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("url"), str)


def sources_of_text(text: str) -> list[WebSource]:
    """Returns plain text as the first result. Further results name the other links in it."""
    links = list(dict.fromkeys(_URL.findall(text)))[:_MAX_LINKS] or [""]
    first = WebSource(links[0], title_of([text]), text)
    return [first, *(WebSource(link, link) for link in links[1:])]


def title_of(texts: list[str]) -> str:
    """Returns the first line that is not blank, shortened."""
    lines = [line.strip(" #\t") for line in "\n".join(texts).splitlines()]
    return next((line[:_MAX_TITLE] for line in lines if line), "")


def _source(item: dict[str, Any]) -> WebSource:
    return WebSource(
        item["url"],
        _first_text(item, ("title", "name")),
        _first_text(item, _TEXTS),
        _first_text(item, _AGES) or None,
    )


def _first_text(item: dict[str, Any], names: tuple[str, ...]) -> str:
    """Returns the first of these members that is text; "" if none is."""
    return next((item[name] for name in names if isinstance(item.get(name), str)), "")

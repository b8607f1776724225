"""Web search of Claude Code and Codex, through a provider: what the clients show and send back, and
the prompts."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.bus_turns import BusTurns
from tests.clients.claude import ClaudeCode
from tests.clients.conftest import start
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.wire import Recorder
from tests.kit.search_provider import ProviderStub, provider

pytestmark = pytest.mark.timeout(900)
ALLOWED = '{"permissions": {"allow": ["WebSearch"]}}'


@dataclass
class Web:
    """A running Turnwire with a provider, observed on the wire and on the bus."""

    provider: ProviderStub
    wire: Recorder
    bus: BusTurns


@pytest.fixture
async def web(
    nats_binary: str, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Web]:
    async with provider() as stub:
        server, stack = start(
            nats_binary, demo_model, tmp_path_factory, {}, frontend={"web_provider": stub.url}
        )
        try:
            async with Recorder(stack.url) as wire, BusTurns(stack.nats.url) as bus:
                yield Web(stub, wire, bus)
        finally:
            stack.stop()
            server.kill()


def nested(output: str) -> str:
    """Text that the script engine writes as a request for this output: it takes `[[burst 4]]` out
    of what it writes."""
    spelled = "[[say]]" + output.replace("<", "<[[burst 4]]") + "[[/say]]"
    return spelled.replace("[[", "[[[burst 4]][")


async def test_claude_codes_web_search_is_served(machine: Machine, web: Web) -> None:
    claude = await ClaudeCode(machine).connect(web.wire.url)
    side = nested("</think>\n\n" + call("web_search", query="tides"))
    outputs = [
        "Search.\n</think>\n\n" + call("WebSearch", query=side),
        "So.\n</think>\n\nHigh water is at noon.",
    ]
    ran = await claude.ask(request(outputs), "--settings", ALLOWED)
    assert [found["query"] for found in web.provider.calls] == ["tides"]
    (searching,) = [
        one
        for one in web.wire.turns
        if [tool["name"] for tool in one.body["tools"]] == ["web_search"]
    ]
    kinds = [
        data["content_block"]["type"]
        for name, data in searching.events
        if name == "content_block_start"
    ]
    assert kinds[:2] == ["server_tool_use", "web_search_tool_result"]
    (result,) = [
        str(block["content"])
        for line in ran.lines
        if line["type"] == "user"
        for block in line["message"]["content"]
        if block["type"] == "tool_result"
    ]
    assert "https://example.org/tides" in result  # what the client made of the result blocks
    assert "Tides" in result
    assert ran.lines[-1]["result"] == "High water is at noon."

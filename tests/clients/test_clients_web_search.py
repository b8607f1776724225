"""Web search of Claude Code and Codex, through a provider: what the clients show and send back, and
the prompts."""

from pathlib import Path

import pytest

from tests.clients.claude import ClaudeCode
from tests.clients.conftest import observed, running
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.session import Session
from tests.kit.search_provider import ProviderStub, provider

pytestmark = pytest.mark.timeout(900)
ALLOWED = '{"permissions": {"allow": ["WebSearch"]}}'


def nested(output: str) -> str:
    """Text that the script engine writes as a request for this output: it takes `[[burst 4]]` out
    of what it writes."""
    spelled = "[[say]]" + output.replace("<", "<[[burst 4]]") + "[[/say]]"
    return spelled.replace("[[", "[[[burst 4]][")


async def test_claude_codes_web_search_is_served(
    machine: Machine, nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with provider() as stub:
        frontend = {"web_provider": stub.url}
        with running(nats_binary, demo_dir, tmp_path_factory, {}, frontend=frontend) as stack:
            async with observed(stack) as session:
                await search(machine, session, stub)


async def search(machine: Machine, session: Session, provider: ProviderStub) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    side = nested("</think>\n\n" + call("web_search", query="tides"))
    outputs = [
        "Search.\n</think>\n\n" + call("WebSearch", query=side),
        "So.\n</think>\n\nHigh water is at noon.",
    ]
    ran = await claude.ask(request(outputs), "--settings", ALLOWED)
    assert [found["query"] for found in provider.calls] == ["tides"]
    names = [[tool["name"] for tool in one.body["tools"]] for one in session.wire.turns]
    events = session.wire.turns[names.index(["web_search"])].events
    starts = [data["content_block"] for name, data in events if name == "content_block_start"]
    kinds = ["server_tool_use", "web_search_tool_result"]
    assert [block["type"] for block in starts[:2]] == kinds
    messages = [line["message"]["content"] for line in ran.lines if line["type"] == "user"]
    (result,) = [str(block["content"]) for blocks in messages for block in blocks]
    assert "https://example.org/tides" in result  # what the client made of the result blocks
    assert "Tides" in result
    assert ran.lines[-1]["result"] == "High water is at noon."

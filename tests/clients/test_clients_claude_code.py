"""Sessions of Claude Code: its requests, output, counts, history and web search."""

import json
from pathlib import Path

import aiohttp
import pytest

from tests.clients.claude import ClaudeCode, blocks, normalized, work
from tests.clients.conftest import MODEL, observed, running
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.pieces import answer_pieces, history, usage
from tests.clients.session import Session
from tests.clients.tasks import FOLLOW, ON
from tests.kit.search_provider import ProviderStub, provider

pytestmark = pytest.mark.timeout(900)
SMALL_WINDOW = 32_768
"""A window that the client can fill."""


async def test_a_session_in_one_process_is_served(machine: Machine, session: Session) -> None:
    """Edit, calls in parallel, compaction, and work that goes on; then the session is resumed."""
    claude = await ClaudeCode(machine).connect(session.wire.url)
    call_and_answer = ["thinking", "tool_use"] * 2 + ["thinking", "text"]
    three_calls = ["thinking", "tool_use", "tool_use", "tool_use", "thinking", "text"]
    assert await work(claude) == call_and_answer + three_calls
    before = list(session.main)
    assert len(before) == 5
    resumed = await claude.ask(FOLLOW, "--continue")
    assert resumed.lines[-1]["result"] == "JOINED"
    assert machine.file("both.txt") == "1\nbeta one\n"
    await session.check(session.main, normalized)
    counts = [usage(one) for one in session.main[-2:]]
    shown = resumed.lines[-1]["usage"]
    assert shown["output_tokens"] == sum(one["output"] for one in counts)
    prompts = sum(one["prompt"] for one in counts)
    assert shown["input_tokens"] + shown["cache_read_input_tokens"] == prompts
    compacted = await claude.ask("/compact", "--continue")
    assert "compact_boundary" in [line.get("subtype") for line in compacted.lines]
    after = await claude.ask(ON, "--continue")
    assert (after.lines[-1]["result"], machine.file("on.txt")) == ("ON", "on\n")
    session.check_served()


async def test_thoughts_between_calls_keep_their_order(machine: Machine, session: Session) -> None:
    first = (
        f"First thought.\n</think>\n\nI begin.\n\n{call('Bash', command='echo a >> order.txt', description='a')}\n"
        f"<think>\nSecond thought.\n</think>\n\n{call('Bash', command='echo b >> order.txt', description='b')}\n\nBoth asked."
    )
    claude = await ClaudeCode(machine).connect(session.wire.url)
    ran = await claude.ask(request([first, "Third thought.\n</think>\n\nAll done."]))
    assert [(kind, text) for kind, text in blocks(ran.lines) if kind != "tool_use"] == [
        ("thinking", "First thought."),
        ("text", "I begin."),
        ("thinking", "Second thought."),
        ("text", "Both asked."),
        ("thinking", "Third thought."),
        ("text", "All done."),
    ]
    kinds = [kind for kind, _ in blocks(ran.lines)]
    assert kinds[:6] == ["thinking", "text", "tool_use", "thinking", "tool_use", "text"]
    assert machine.file("order.txt") == "a\nb\n"
    session.check_served()
    # Where text follows a call, the client sends calls back after everything else. The prompt has
    # the original order.
    sent, back = answer_pieces(session.main[0]), history(session.main[1])
    assert back == sorted(sent, key=lambda piece: piece[0] == "call")
    assert await session.prefix_breaks(session.main) == []


async def test_a_session_beyond_the_window_is_compacted(
    machine: Machine, nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without settings the client assumes a million tokens; only the 400 of the server corrects
    it."""
    with running(nats_binary, demo_dir, tmp_path_factory, {}, SMALL_WINDOW) as stack:
        async with observed(stack) as session:
            await fill_the_window(machine, session)


async def fill_the_window(machine: Machine, session: Session) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    settings = machine.home / ".claude" / "settings.json"
    known = json.loads(settings.read_text())
    for name in ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS"):
        known["env"].pop(name, None)
    settings.write_text(json.dumps(known))
    await claude.ask("Answer with the single word DONE.")
    prompt = usage(session.main[-1])["prompt"]
    line = "alpha beta gamma delta epsilon zeta eta theta"
    async with aiohttp.ClientSession() as http:
        body = {"model": MODEL, "prompt": f"100\t{line}\n"}
        async with http.post(f"{session.wire.upstream}/v1/tokenize", json=body) as answer:
            cost = (await answer.json())["count"]
    # A little more than the window: the client must be able to send all but the beginning for its
    # summary.
    machine.write("big.txt", "\n".join([line] * ((SMALL_WINDOW - prompt) // cost)))
    ran = await claude.ask("Read the file `big.txt`, then answer with the single word DONE.")
    bounds = [at for at, line in enumerate(ran.lines) if line.get("subtype") == "compact_boundary"]
    assert [ran.lines[at]["compact_metadata"]["trigger"] for at in bounds] == ["auto"]
    assert any(line["type"] == "assistant" for line in ran.lines[bounds[0] :])
    refused = [one for one in session.wire.turns if one.status == 400]
    assert refused
    assert all("prompt is too long" in one.document["error"]["message"] for one in refused)


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
    sent = [block for blocks in messages for block in blocks]
    (result,) = [str(block["content"]) for block in sent if block["type"] == "tool_result"]
    assert "https://example.org/tides" in result  # what the client made of the result blocks
    assert "Tides" in result
    assert ran.lines[-1]["result"] == "High water is at noon."

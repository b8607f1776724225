"""Sessions of Claude Code: its requests, output and counts."""

import json
from pathlib import Path

import aiohttp
import pytest

from tests.clients.claude import ClaudeCode, work
from tests.clients.conftest import MODEL, observed, running
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.tasks import FOLLOW, ON
from tests.clients.wire import usage

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
    await session.check(session.main)
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

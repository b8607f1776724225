"""Sessions of Claude Code and Codex with a model that only its own `response_template` describes:
scripted, and decoded from weights by the transformers engine."""

import asyncio
import importlib.util
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients import claude, codex
from tests.clients.bus_turns import BusTurns
from tests.clients.claude import ClaudeCode, blocks, normalized
from tests.clients.codex import CodexCli, items
from tests.clients.conftest import COUNTS, start
from tests.clients.machine import Machine
from tests.clients.pieces import Piece, answer_pieces, turn_id, unchanged
from tests.clients.session import Session
from tests.clients.wire import Recorder
from tests.kit.described_model import build_looping_model, describe_model, loop_answers
from tests.kit.stack import Stack
from turnwire_tools.clients.answer import Kind, Story

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def described(
    nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    model = describe_model(
        shutil.copytree(demo_dir, tmp_path_factory.mktemp("described") / "model")
    )
    server, running = start(nats_binary, model, tmp_path_factory, COUNTS)
    yield running
    running.stop()
    server.kill()


@pytest.fixture
async def described_session(described: Stack) -> AsyncIterator[Session]:
    async with Recorder(described.url) as wire, BusTurns(described.nats.url) as bus:
        yield Session(wire, bus, described)


async def test_claude_code_works(machine: Machine, described_session: Session) -> None:
    session = described_session
    kinds = await claude.work(await ClaudeCode(machine).connect(session.wire.url))
    assert kinds.count("tool_use") == 5
    session.check_served()
    assert await session.prefix_breaks(session.main) == []


async def test_codex_works(machine: Machine, described_session: Session) -> None:
    session = described_session
    await codex.work(await CodexCli(machine).connect(session.wire.url))
    session.check_served()
    assert await session.prefix_breaks(session.main) == []


@pytest.fixture(scope="module")
def looping(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    model = build_looping_model(tmp_path_factory.mktemp("looping") / "model")
    server, running = start(
        nats_binary, model, tmp_path_factory, COUNTS, worker={"engine": "transformers"}
    )
    yield running
    running.stop()
    server.kill()


@pytest.fixture
async def looping_session(looping: Stack) -> AsyncIterator[Session]:
    async with Recorder(looping.url) as wire, BusTurns(looping.nats.url) as bus:
        yield Session(wire, bus, looping)


def check_files(machine: Machine) -> None:
    """The commands of the loop ran in their order."""
    assert machine.file("notes.txt") == machine.file("seen.txt") == "beta one\n"
    assert machine.file("both.txt") == "beta one\né 東\n"


async def check_loop(
    session: Session, shell: str, normalized: Callable[[Piece], Piece] = unchanged
) -> None:
    """Every answer has its blocks in order and was asked for once, and each prompt begins with the
    prompt and the output before it, which are in the KV cache."""
    session.check_served()
    assert stories(session) == loop_answers(shell)
    session.check_history(session.main, normalized)
    await session.check_counts(session.main)
    assert await session.prefix_breaks(session.main) == []
    turns = [await session.bus.ended(turn_id(one)) for one in session.main]
    assert all(
        (later.cached or 0) > len(earlier.prompt + earlier.output) - 64
        for earlier, later in pairwise(turns)
    )
    assert not any(turn.retries for turn in turns)


def stories(session: Session) -> list[Story]:
    """The blocks of each answer, without white space around them."""
    return [[story_block(piece) for piece in answer_pieces(one)] for one in session.main]


def story_block(piece: Piece) -> tuple[Kind, str]:
    """A piece of an answer as a block of a story."""
    kind, *rest = piece
    if kind == "call":
        return kind, f"{rest[1]} {json.dumps(json.loads(rest[2]), ensure_ascii=False)}"
    return kind, rest[0].strip()


async def test_claude_code_runs_a_loop_of_real_weights(
    machine: Machine, looping_session: Session
) -> None:
    client = await ClaudeCode(machine).connect(looping_session.wire.url)
    machine.write("notes.txt", "alpha one\n")
    async with client.dialog() as dialog:
        assert (await dialog.ask("Edit the notes."))["result"] == "EDITED"
        assert (await dialog.ask("Join the files."))["result"] == "JOINED"
        found = blocks(dialog.lines)
    check_files(machine)
    kinds = {"reasoning": "thinking", "text": "text", "call": "tool_use"}
    assert [kind for kind, _ in found] == [
        kinds[kind] for answer in loop_answers("Bash") for kind, _ in answer
    ]
    await check_loop(looping_session, "Bash", normalized)


async def test_codex_runs_a_loop_of_real_weights(
    machine: Machine, looping_session: Session
) -> None:
    client = await CodexCli(machine).connect(looping_session.wire.url)
    machine.write("notes.txt", "alpha one\n")
    first = items(await client.ask("Edit the notes."))
    assert first[-1]["text"] == "EDITED"
    second = items(await client.ask("Join the files.", resume=True))
    assert second[-1]["text"] == "JOINED"
    check_files(machine)
    kinds = {"reasoning": "reasoning", "text": "agent_message", "call": "command_execution"}
    expected = [kinds[kind] for answer in loop_answers("exec_command") for kind, _ in answer]
    assert [item["type"] for item in (*first, *second)] == expected
    await check_loop(looping_session, "exec_command")


async def test_loop_goes_on_when_its_worker_is_killed(
    machine: Machine, looping: Stack, looping_session: Session
) -> None:
    """In the middle of a thought, which the client is reading."""
    session = looping_session
    client = await ClaudeCode(machine).connect(session.wire.url)
    machine.write("notes.txt", "alpha one\n")
    (worker,) = looping.of("worker")
    running = asyncio.create_task(client.ask("Edit the notes."))
    await session.wire.until(
        lambda: any("content_block_delta" in dict(one.events) for one in session.main)
    )
    worker.kill()
    worker.start()
    ran = await running
    assert ran.lines[-1]["result"] == "EDITED"
    assert machine.file("seen.txt") == "beta one\n"
    session.check_served()
    assert stories(session) == loop_answers("Bash")[:4]
    assert await session.prefix_breaks(session.main) == []
    turns = [await session.bus.ended(turn_id(one)) for one in session.main]
    assert [turn.retries > 0 for turn in turns] == [True, False, False, False]

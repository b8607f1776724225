"""Sessions of Claude Code and Codex with a model that only its own `response_template` describes:
scripted, and decoded from weights by the transformers engine."""

import importlib.util
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients import claude, codex
from tests.clients.bus_turns import BusTurns
from tests.clients.claude import ClaudeCode, blocks, normalized
from tests.clients.codex import CodexCli
from tests.clients.conftest import COUNTS, start
from tests.clients.machine import Machine
from tests.clients.pieces import Piece, answer_pieces, turn_id
from tests.clients.session import Session
from tests.clients.wire import Recorder
from tests.kit.described_model import build_looping_model, describe_model, loop_answers
from tests.kit.stack import Stack
from turnwire_tools.clients.answer import Kind

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
    # The commands of the loop ran in their order.
    assert machine.file("notes.txt") == machine.file("seen.txt") == "beta one\n"
    assert machine.file("both.txt") == "beta one\né 東\n"
    kinds = {"reasoning": "thinking", "text": "text", "call": "tool_use"}
    assert [kind for kind, _ in found] == [
        kinds[kind] for answer in loop_answers("Bash") for kind, _ in answer
    ]
    session = looping_session
    session.check_served()
    stories = [[story_block(piece) for piece in answer_pieces(one)] for one in session.main]
    assert stories == loop_answers("Bash")
    session.check_history(session.main, normalized)
    await session.check_counts(session.main)
    assert await session.prefix_breaks(session.main) == []
    turns = [await session.bus.ended(turn_id(one)) for one in session.main]
    assert all(
        (later.cached or 0) > len(earlier.prompt + earlier.output) - 64
        for earlier, later in pairwise(turns)
    )

"""Sessions of Claude Code and Codex with a model that only its own `response_template` describes."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.clients.bus_turns import BusTurns
from tests.clients.claude import ClaudeCode, blocks
from tests.clients.codex import CodexCli, items
from tests.clients.conftest import COUNTS, start
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.tasks import EDIT, FOLLOW, PARALLEL
from tests.clients.wire import Recorder
from tests.described_model import describe_model
from tests.pipeline.stack import Stack

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def described(nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = describe_model(shutil.copytree(demo_dir, tmp_path_factory.mktemp("described") / "model"))
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
    claude = await ClaudeCode(machine).connect(session.wire.url)
    machine.write("notes.txt", "alpha one\n")
    async with claude.dialog() as dialog:
        assert (await dialog.ask(EDIT))["result"] == "EDITED"
        assert machine.file("notes.txt") == "beta one\n"
        assert (await dialog.ask(PARALLEL))["result"] == "DONE"
        kinds = [kind for kind, _ in blocks(dialog.lines)]
    assert kinds.count("tool_use") == 5
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    session.check_served()
    assert await session.prefix_breaks(session.main) == []


async def test_codex_works(machine: Machine, described_session: Session) -> None:
    session = described_session
    codex = await CodexCli(machine).connect(session.wire.url)
    machine.write("notes.txt", "alpha one\n")
    assert items(await codex.ask(EDIT))[-1]["text"] == "EDITED"
    assert machine.file("notes.txt") == "beta one\n"
    await codex.ask(PARALLEL, resume=True)
    assert items(await codex.ask(FOLLOW, resume=True))[-1]["text"] == "JOINED"
    assert machine.file("both.txt") == "1\nbeta one\n"
    session.check_served()
    assert await session.prefix_breaks(session.main) == []

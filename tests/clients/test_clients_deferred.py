"""A real client with 250 tools of an MCP server, behind a server that defers them: the client sees
nothing of the searches, and its tools are found and called."""

import sys
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients.agents import Opencode
from tests.clients.conftest import observed, running
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.kit.bus_turns import prefix_break
from tests.kit.stack import Stack
from tests.kit.tool_catalogue import tasks

pytestmark = pytest.mark.timeout(1800)
LISTED = 16
MOST_TOKENS = 2000
"""Tokens of the first prompt beyond those of the client without the MCP server."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def deferring(
    nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    with running(nats_binary, demo_dir, tmp_path_factory, {}, defer_tools=LISTED) as started:
        yield started


@pytest.fixture
async def session(deferring: Stack) -> AsyncIterator[Session]:
    async with observed(deferring) as one:
        yield one


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
async def test_opencode_finds_its_tools(machine: Machine, session: Session, api: str) -> None:
    opencode = Opencode(machine)
    await opencode.connect(session.wire.url, api)
    await opencode.ask("Answer with the single word READY.")
    bare = len((await session.bus.ended([*session.bus.turns][-1])).prompt)
    log = machine.project / "called.txt"
    machine.environment["PYTHONPATH"] = str(ROOT)
    opencode.add_mcp_server("many", sys.executable, "-m", "tests.clients.many_tools", str(log))

    asked = tasks() if api == "chat" else dict([*tasks().items()][:3])
    for number, (name, task) in enumerate(asked.items()):
        answer = await opencode.ask(f"Use a tool that {task}.", resume=number > 0)
        assert f"{name} ran" in answer
    assert log.read_text().split() == [*asked]

    session.check_served()
    requests = session.main[1:]
    assert len(requests) == 2 * len(asked)
    assert len(requests[0].body["tools"]) > 250
    assert not any("'name': 'tool_search'" in str(one.body) for one in requests)
    assert await session.prefix_breaks(requests) == []
    turns = [await session.bus.ended(turn) for turn in [*session.bus.turns]]
    turns = [turn for turn in turns[-3 * len(asked) - 1 :] if len(turn.prompt) > bare // 2]
    assert len(turns) == 3 * len(asked)
    assert [found for pair in pairwise(turns) if (found := prefix_break(*pair))] == []
    assert len(turns[0].prompt) - bare <= MOST_TOKENS

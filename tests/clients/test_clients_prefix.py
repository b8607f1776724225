"""Sessions of more than twenty turns: each prompt begins with all tokens of the prompt and output
before it, also where stages are killed between turns, and after a restart of everything."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.bus_turns import BusTurns
from tests.clients.claude import ClaudeCode
from tests.clients.claude import normalized as normalized_by_claude
from tests.clients.codex import CodexCli
from tests.clients.conftest import options, start
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request, turns
from tests.clients.session import Session
from tests.clients.wire import Recorder
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack

pytestmark = pytest.mark.timeout(900)

CLAUDE = turns(lambda command: call("Bash", command=command, description="it"))
CODEX = turns(lambda command: call("exec_command", cmd=command))
LOG = ["1", "2a", "2b", "3", "3b", "4 caf\u00e9", "5", '6 "a" \\ <b> & c', "8", "9"]


async def test_claude_code_is_served(machine: Machine, session: Session) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    asked = [*CLAUDE, tidied(machine)]
    async with claude.dialog() as dialog:
        for outputs in asked:
            await dialog.ask(request(outputs))
    main = session.main
    assert len(main) == sum(map(len, asked))
    assert machine.file("made.txt") == "one\ntwo\n"
    assert await session.prefix_breaks(main) == []
    assert sorted(machine.file("log.txt").splitlines()) == sorted(
        LOG
    )  # calls of one turn run at once
    session.check_served()
    session.check_history(main, normalized_by_claude)
    await session.check_counts(main)


def tidied(machine: Machine) -> list[str]:
    """Outputs with calls that the client changes when it sends them back."""
    made = str(machine.project / "made.txt")
    calls = [
        call("Write", file_path=made, content="zero  \ntwo\n"),
        call("Edit", file_path=made, old_string="zero", new_string="one \t"),
        call(
            "Bash",
            command=f"cd {machine.project} && cat made.txt",
            timeout="5000.0",
            description="it",
        ),
    ]
    return [f"So.\n</think>\n\n{made}" for made in calls] + ["It is there.\n</think>\n\nDone."]


async def test_codex_is_served(machine: Machine, session: Session) -> None:
    codex = await CodexCli(machine).connect(session.wire.url)
    for n, outputs in enumerate(CODEX):
        await codex.ask(request(outputs), resume=n > 0)
    main = session.main
    assert len(main) == sum(map(len, CODEX))
    assert await session.prefix_breaks(main) == []
    assert sorted(machine.file("log.txt").splitlines()) == sorted(
        LOG
    )  # calls of one turn run at once
    session.check_served()
    session.check_history(main)
    await session.check_counts(main)


@pytest.fixture
def fragile(
    nats_binary: str, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[NatsServer, Stack]]:
    """One of each, for tests that kill them."""
    server, stack = start(nats_binary, demo_model, tmp_path_factory, {})
    yield server, stack
    stack.stop()
    server.kill()


async def test_every_stage_dies_once_and_then_all_of_them(
    machine: Machine, fragile: tuple[NatsServer, Stack]
) -> None:
    """Each stage is killed and replaced between two requests, finally all of them and
    nats-server."""
    server, stack = fragile
    async with Recorder(stack.url) as wire:
        claude = await ClaudeCode(machine).connect(wire.url)
        found = []
        deaths = (
            ("parser",),
            ("preprocessor",),
            ("worker",),
            ("frontend",),
            ("worker", "parser", "preprocessor", "frontend"),
        )
        async with BusTurns(server.url) as bus:
            session = Session(wire, bus, stack)
            await claude.ask(request(CLAUDE[0]))
            for stages, outputs in zip(deaths[:-1], CLAUDE[1:], strict=False):
                replace(stack, stages, wire)
                await claude.ask(request(outputs), "--continue")
            found += await session.prefix_breaks(session.main)
            last = await bus.ended(list(bus.turns)[-1])
        server.kill()
        server.start()
        replace(stack, deaths[-1], wire)
        async with BusTurns(server.url) as bus:
            bus.turns[last.id] = last
            session.bus = bus
            before = len(session.main) - 1
            await claude.ask(request(CLAUDE[5]), "--continue")
            found += await session.prefix_breaks(session.main[before:])
        assert found == []
        session.check_history(session.main, normalized_by_claude)


def replace(stack: Stack, stages: tuple[str, ...], wire: Recorder) -> None:
    """Kills the processes of these stages and starts others."""
    for stage in stages:
        for child in stack.of(stage):
            child.kill()
    for stage in stages:
        stack.start(stage, **options()[stage])
    stack.restore({"worker": 1, "parser": 1, "preprocessor": 1})
    wire.upstream = stack.url

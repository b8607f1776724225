"""Sessions of real clients as training samples: a client that knows nothing of it is the rollout
engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.claude import ClaudeCode
from tests.clients.codex import CodexCli
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request, turns
from tests.clients.pieces import turn_id
from tests.clients.session import Session
from tests.kit.stack import Stack
from tests.pipeline.tap import SAMPLE, Tap

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def tap(stack: Stack, tmp_path: Path) -> Iterator[Tap]:
    running = Tap(stack.nats.url, tmp_path)
    yield running
    running.stop()


async def check_main(session: Session, samples: list[SAMPLE]) -> None:
    """All requests of the conversation are one sample, with the ids of the last prompt and its
    output."""
    main = [turn_id(one) for one in session.main]
    (sample,) = [sample for sample in samples if sample["turns"][0]["turn"] == main[0]]
    assert [span["turn"] for span in sample["turns"]] == main
    last = await session.bus.ended(main[-1])
    assert sample["ids"] == [*last.prompt, *last.output, last.stop_id]
    assert sample["session"]
    assert {block["kind"] for span in sample["turns"] for block in span["blocks"]} == {
        "reasoning",
        "text",
        "tool_use",
    }


async def test_claude_code_is_served(
    machine: Machine, session: Session, tap: Tap, demo_model: Path
) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    async with claude.dialog() as dialog:
        for outputs in turns(lambda command: call("Bash", command=command, description="it")):
            await dialog.ask(request(outputs))
    await check_main(session, tap.samples(demo_model))


async def test_codex_is_served(
    machine: Machine, session: Session, tap: Tap, demo_model: Path
) -> None:
    codex = await CodexCli(machine).connect(session.wire.url)
    for n, outputs in enumerate(turns(lambda command: call("exec_command", cmd=command))):
        await codex.ask(request(outputs), resume=n > 0)
    await check_main(session, tap.samples(demo_model))

"""Sessions of more than twenty turns: each prompt begins with all tokens of the prompt and output
before it. The turns of a session are one training sample."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.claude import ClaudeCode
from tests.clients.codex import CodexCli
from tests.clients.machine import Machine
from tests.clients.noncanonical import turns
from tests.clients.session import Session
from tests.clients.wire import turn_id
from tests.kit.messages_client import say
from tests.kit.model_output import written_call
from tests.pipeline.tap import SAMPLE, Tap

pytestmark = pytest.mark.timeout(900)

CLAUDE = turns(lambda command: written_call("Bash", command=command, description="it"))
CODEX = turns(lambda command: written_call("exec_command", cmd=command))
LOG = ["1", "2a", "2b", "3", "3b", "4 caf\u00e9", "5", '6 "a" \\ <b> & c', "8", "9"]


async def check(session: Session, machine: Machine, asked: Sequence[Sequence[str]]) -> None:
    """Checks that hold for a session of any client with these outputs."""
    main = session.main
    assert len(main) == sum(map(len, asked)) >= 20
    # Calls of one turn run at once.
    assert sorted(machine.file("log.txt").splitlines()) == sorted(LOG)
    await session.check(main)


async def check_sample(session: Session, samples: Sequence[SAMPLE]) -> None:
    """All requests of the conversation are one training sample, with the ids of the last prompt and
    its output."""
    main = [turn_id(one) for one in session.main]
    (sample,) = [sample for sample in samples if sample["turns"][0]["turn"] == main[0]]
    assert [span["turn"] for span in sample["turns"]] == main
    last = await session.bus.ended(main[-1])
    assert sample["ids"] == [*last.prompt, *last.output, last.stop_id]
    assert sample["session"]
    kinds = {block["kind"] for span in sample["turns"] for block in span["blocks"]}
    assert kinds == {"reasoning", "text", "tool_use"}


async def test_claude_code_is_served(
    machine: Machine, session: Session, tap: Tap, demo_dir: Path
) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    asked = [*CLAUDE, tidied(machine)]
    async with claude.dialog() as dialog:
        for outputs in asked:
            await dialog.ask(say(*outputs))
    await check(session, machine, asked)
    assert machine.file("made.txt") == "one\ntwo\n"
    await check_sample(session, tap.samples(demo_dir))


def tidied(machine: Machine) -> list[str]:
    """Outputs with calls that the client changes when it sends them back."""
    made = str(machine.project / "made.txt")
    command = f"cd {machine.project} && cat made.txt"
    calls = [
        written_call("Write", file_path=made, content="zero  \ntwo\n"),
        written_call("Edit", file_path=made, old_string="zero", new_string="one \t"),
        written_call("Bash", command=command, timeout="5000.0", description="it"),
    ]
    return [f"So.\n</think>\n\n{made}" for made in calls] + ["It is there.\n</think>\n\nDone."]


async def test_codex_is_served(
    machine: Machine, session: Session, tap: Tap, demo_dir: Path
) -> None:
    codex = await CodexCli(machine).connect(session.wire.url)
    for n, outputs in enumerate(CODEX):
        await codex.ask(say(*outputs), resume=n > 0)
    await check(session, machine, CODEX)
    await check_sample(session, tap.samples(demo_dir))

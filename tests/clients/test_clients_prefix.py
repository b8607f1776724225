"""Sessions of more than twenty turns: each prompt begins with all tokens of the prompt and output
before it. The turns of a session are one training sample."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.clients.claude import ClaudeCode
from tests.clients.codex import CodexCli
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.wire import turn_id
from tests.kit.messages_client import say
from tests.kit.model_output import written_call
from tests.pipeline.tap import SAMPLE, Tap


def turns(shell: Callable[[str], str]) -> list[list[str]]:
    """The model's outputs for each user request, turn by turn, the last one without a call. The
    prompt opens the reasoning. `shell`: writes a call of the client's shell tool."""
    three = "\n".join(shell(f"echo 7{letter} > 7{letter}") for letter in "abc")
    quoted = shell("""echo '6 "a" \\ <b> & c' >> log.txt""")
    return [
        [
            "  I look first,  \nthen I act. \n</think>\n\n Looking  \n\n\n"
            + shell("echo 1 >> log.txt"),
            "\n</think>\n\nDone. ",
        ],
        [
            "One.\n</think>\n\n"
            + shell("echo 2a >> log.txt")
            + "\n<think>\nTwo.\n</think>\n\n"
            + shell("echo 2b >> log.txt"),
            "Both are there.\n</think>\n\nYes:\n\n\n- a\n- b\n",
        ],
        [
            "</think>\n\n" + shell("echo 3 >> log.txt") + "\n",
            "Again.\n</think>\n\n" + shell("echo 3b >> log.txt"),
            "</think>\n\n3",
        ],
        [
            "Caf\u00e9 \u2013 \U0001f642\n\n\n</think>\n" + shell("echo 4 caf\u00e9 >> log.txt"),
            "\u00fcber\n</think>\n\n\U0001f468\u200d\U0001f469",
        ],
        [
            "Tabs\tand  blanks.\n</think>\n\n \n\n"
            + shell("echo 5 >> log.txt  # 1e2 5000.0")
            + "\n \n",
            "x\n</think>\n\n\t5\t\n",
        ],
        ["Quotes.\n</think>\n\n" + quoted, 'q\n</think>\n\n`6` <b>bold</b> &amp; "x"'],
        ["Three at once.\n</think>\n\n" + three, "ok\n</think>\n\n7."],
        [
            "Lines.\n</think>\n\nText first.\n\n" + shell("echo 8 >> log.txt"),
            "\n\n</think>\n\n```sh\nls\n```\n",
        ],
        [
            f"Long one. {'word ' * 300}\n</think>\n\n" + shell("echo 9 >> log.txt"),
            "fin\n</think>\n\nNine \u2026",
        ],
        ["The end.\n</think>\n\n" + shell("wc -l < log.txt"), "Over.\n</think>\n\nDONE"],
    ]


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

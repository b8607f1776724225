"""The tree of samples of real clients' sessions: helpers and compactions."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.agents import Opencode
from tests.clients.claude import ClaudeCode, work
from tests.clients.codex import CodexCli
from tests.clients.conftest import MODEL
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.tasks import MUCH, ON
from tests.clients.wire import usage
from tests.kit.messages_client import say
from tests.kit.model_output import written_call
from tests.pipeline.tap import SAMPLE, Tap

pytestmark = pytest.mark.timeout(900)
TASK = "Use your shell tool to run exactly this command and nothing else: `echo seen`. Then answer DONE."
OVER = "It is done.\n</think>\n\nDONE"


def causes(samples: Sequence[SAMPLE]) -> list[str | None]:
    return [sample["parent"] and sample["parent"]["cause"] for sample in samples]


def check_compaction(samples: Sequence[SAMPLE]) -> None:
    """The last sample goes on with the summary that the one before ended with."""
    before, after = samples[-2:]
    assert before["kind"] == after["kind"] == "main"
    turn = before["turns"][-1]["turn"]
    assert after["parent"] == {"sample": before["id"], "turn": turn, "cause": "compaction"}
    assert after["departs"] is None


async def test_claude_codes_compaction_and_helpers_have_their_parents(
    machine: Machine, session: Session, tap: Tap, demo_dir: Path
) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    await work(claude)
    await claude.ask("/compact", "--continue")
    await claude.ask(ON, "--continue")
    agent = {"description": "look", "prompt": TASK, "subagent_type": "general-purpose"}
    call = written_call("Agent", **agent, run_in_background="false")
    await claude.ask(say(f"I delegate.\n</think>\n\n{call}\n{call}", OVER), "--continue")
    samples = tap.samples(demo_dir)
    helpers = [sample for sample in samples if sample["kind"] == "helper"]
    main = [sample for sample in samples if sample["kind"] == "main"]
    assert len(helpers) == 2
    started = {helper["parent"]["call_id"] for helper in helpers}
    (caller,) = {helper["parent"]["turn"] for helper in helpers}
    (span,) = [span for span in main[-1]["turns"] if span["turn"] == caller]
    calls = [block["call_id"] for block in span["blocks"] if block["kind"] == "tool_use"]
    assert {helper["parent"]["sample"] for helper in helpers} == {main[-1]["id"]}
    assert started == {*calls}
    # The request for the summary, which turns off reasoning, is a fork of its session.
    assert causes(main) == [None, "fork", "compaction"]
    assert main[2]["parent"]["turn"] == main[1]["turns"][-1]["turn"]


async def test_codex_compaction_has_its_parent(
    machine: Machine, session: Session, tap: Tap, demo_dir: Path
) -> None:
    codex = await CodexCli(machine).connect(session.wire.url)
    await codex.ask(MUCH)
    filled = usage(session.wire.turns[-1])
    limit = f"model_auto_compact_token_limit={filled['prompt'] + filled['output']}"
    await codex.ask(ON, "-c", limit, resume=True)
    samples = tap.samples(demo_dir)
    # The request for the summary has no tools: its head is another.
    assert causes(samples) == [None, "head", "compaction"]
    check_compaction(samples)


async def test_codex_compaction_by_the_server_has_its_parent(
    machine: Machine, session: Session, tap: Tap, demo_dir: Path
) -> None:
    codex = await CodexCli(machine).built_in(session.wire.url, MODEL)
    await codex.ask(MUCH)
    filled = usage(session.wire.turns[-1])
    limit = f"model_auto_compact_token_limit={filled['prompt'] + filled['output']}"
    await codex.ask(ON, "-c", limit, resume=True)
    samples = [sample for sample in tap.samples(demo_dir) if len(sample["turns"]) > 1]
    print([(s["kind"], s["parent"], len(s["turns"])) for s in samples])
    check_compaction(samples)


@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_opencodes_compaction_has_its_parent(
    machine: Machine, session: Session, tap: Tap, demo_dir: Path, api: str
) -> None:
    opencode = Opencode(machine)
    await opencode.connect(session.wire.url, api)
    await opencode.ask(MUCH)
    filled = usage(session.main[-1])
    limit = {"context": filled["prompt"] + filled["output"] + 8000, "output": 8000}
    opencode.change_settings(lambda provider: provider["models"][MODEL].update(limit=limit))
    await opencode.ask("Answer with the single word READY.", resume=True)
    samples = tap.samples(demo_dir)
    check_compaction(samples)

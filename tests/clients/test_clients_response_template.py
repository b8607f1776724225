"""A session of Claude Code with a model that only its own `response_template` describes, decoded from
weights by the transformers engine."""

import importlib.util
import json
from itertools import pairwise

import pytest

from tests.clients.claude import ClaudeCode, blocks, normalized
from tests.clients.conftest import COUNTS, observed, running
from tests.clients.machine import Machine
from tests.clients.pieces import Piece, answer_pieces, turn_id
from tests.clients.session import Session
from tests.kit.described_model import build_looping_model, loop_answers
from turnwire_tools.clients.answer import Kind

pytestmark = pytest.mark.timeout(900)


def story_block(piece: Piece) -> tuple[Kind, str]:
    """A piece of an answer as a block of a story."""
    kind, *rest = piece
    if kind == "call":
        return kind, f"{rest[1]} {json.dumps(json.loads(rest[2]), ensure_ascii=False)}"
    return kind, rest[0].strip()


async def test_claude_code_runs_a_loop_of_real_weights(
    machine: Machine, nats_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    model = build_looping_model(tmp_path_factory.mktemp("looping") / "model")
    engine = {"engine": "transformers"}
    with running(nats_binary, model, tmp_path_factory, COUNTS, worker=engine) as stack:
        async with observed(stack) as session:
            await run_the_loop(machine, session)


async def run_the_loop(machine: Machine, session: Session) -> None:
    client = await ClaudeCode(machine).connect(session.wire.url)
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
    stories = [[story_block(piece) for piece in answer_pieces(one)] for one in session.main]
    assert stories == loop_answers("Bash")
    await session.check(session.main, normalized)
    turns = [await session.bus.ended(turn_id(one)) for one in session.main]
    assert all(
        (later.cached or 0) > len(earlier.prompt + earlier.output) - 64
        for earlier, later in pairwise(turns)
    )

"""The judgement of rollouts' samples."""

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.chaos.clients import Stream
from tests.chaos.judge import Wanted
from tests.chaos.rollouts import judge_samples
from tests.chaos.scripts import write_script

TURN = "0" * 24
SCRIPT = write_script(Random(1), "s", 0.5, 20)
IDS = [*map(ord, SCRIPT.written), 0]
"""One token a character, and the end."""
SPAN = {"turn": TURN, "start": 2, "end": len(IDS) + 2}
SAMPLE = {"id": TURN, "ids": [1, 1, *IDS], "loss_mask": [0, 0, *[1] * len(IDS)], "turns": [SPAN]}


def problems(missing: Mapping[str, str], *samples: dict[str, Any]) -> list[str]:
    wanted = Wanted("messages", True, SCRIPT, len(IDS))
    stream = Stream("s", wanted, 0, rollout="ro_1", turns=["", TURN])
    return judge_samples(samples, missing, [stream], lambda ids: "".join(map(chr, ids)))


def test_whole_or_named_turns_are_fine() -> None:
    assert problems({}, SAMPLE) == []
    assert problems({"other": "refused"}, SAMPLE) == []
    assert problems({TURN: "lost"}) == []


def test_others_are_not() -> None:
    assert problems({}) == [f"s: {TURN} is neither in a sample nor missing"]
    assert problems({TURN: "running"}) == [f"{TURN} still runs"]
    assert problems({TURN: "lost"}, SAMPLE) == [f"{TURN} is there twice"]
    cut = SAMPLE | {"turns": [SPAN | {"end": 9}]}
    mask, count = problems({}, cut)
    assert mask == f"{TURN}: the mask is not the decoded tokens"
    assert count == f"s: 7 tokens, not {len(IDS)}"
    assert problems({}, SAMPLE | {"ids": [1, 1, 7, *IDS[1:]]}) == ["s: other tokens"]

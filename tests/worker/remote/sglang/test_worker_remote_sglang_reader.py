"""SGLang's answers: both forms of its streams, whole and damaged."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.worker.engines.remote.answer import AnswerJudge
from services.worker.engines.remote.dialect import ServerRequest
from services.worker.engines.remote.event_reader import BadAnswer
from services.worker.engines.remote.http import HttpRefusal
from services.worker.engines.remote.sglang.dialect import SglangDialect
from tests.kit.engines import PROMPT, ids_of, request
from tests.kit.every import for_each
from tests.worker.fake_sglang_server import EOS


class Answer:
    """An answer in one of the forms, and the request that it answers."""

    def __init__(self, ids: list[int], pieces: list[int], *, repeats: bool, stops: bool) -> None:
        self.ids = ids
        self.sent = [*ids, EOS] if stops else ids
        self.stops = stops
        self.events: list[Any] = []
        at = 0
        while at < len(self.sent):
            since, at = at, at + pieces[len(self.events) % len(pieces)]
            ids = self.sent[0 if repeats else since : at]
            meta = {"id": "r", "prompt_tokens": len(PROMPT), "cached_tokens": 16}
            meta["completion_tokens"] = min(at, len(self.sent))
            meta["output_token_logprobs"] = [[-0.5, token, None] for token in ids]
            self.events.append({"output_ids": ids, "meta_info": meta})
        self.events[-1]["meta_info"]["finish_reason"] = (
            {"type": "stop", "matched": EOS} if stops else {"type": "length", "length": at}
        )

    def read(self) -> tuple[list[int], Exception | None]:
        """Returns the tokens that a turn gets, and the error with which it ends."""
        asked = request(stop_ids=[EOS], max_tokens=len(self.sent), logprobs=0)
        reader = SglangDialect().reader(asked, ServerRequest("", {"rid": "r"}))
        judge, deltas = AnswerJudge(asked, PROMPT, 512), []
        try:
            for event in self.events:
                deltas.append(judge.read(reader.read(json.dumps(event).encode())))
            deltas.append(judge.end())
        except (EngineFailed, HttpRefusal) as error:
            return ids_of(filter(None, deltas)), error
        last = deltas[-1]
        assert last is not None
        assert last.stop_id == (EOS if self.stops else None)
        assert last.finish is (FinishReason.STOP if self.stops else FinishReason.LENGTH)
        return ids_of(filter(None, deltas)), None


answers = st.builds(
    Answer,
    # Few tokens, so that parts are often equal.
    st.lists(st.integers(8, 10), min_size=1, max_size=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    repeats=st.booleans(),
    stops=st.booleans(),
)


@given(answers)
def test_both_forms_give_the_tokens(answer: Answer) -> None:
    assert answer.read() == (answer.ids, None)


def lose(events: list[Any], random: Random) -> None:
    del events[random.randrange(len(events))]


def repeat(events: list[Any], random: Random) -> None:
    at = random.randrange(len(events))
    events.insert(random.randint(at, len(events)), events[at])


def swap(events: list[Any], random: Random) -> None:
    one, other = random.randrange(len(events)), random.randrange(len(events))
    events[one], events[other] = events[other], events[one]


def change_id(events: list[Any], random: Random) -> None:
    """Also one that was sent before."""
    ids = random.choice(events)["output_ids"]
    ids[random.randrange(len(ids))] = random.choice([11, 512, -1, EOS, True, "8", None])


def distinct(events: list[Any]) -> list[Any]:
    """The events in which a wrong number shows. In the second one after a single token it makes a
    good answer of the other form."""
    return events[:1] + events[2:] if len(events[0]["output_ids"]) == 1 else events


def drop_id(events: list[Any], random: Random) -> None:
    ids = random.choice(distinct(events))["output_ids"]
    del ids[random.randrange(len(ids))]


def count_otherwise(events: list[Any], random: Random) -> None:
    counts = random.choice(distinct(events))["meta_info"]
    counts[random.choice(["prompt_tokens", "completion_tokens"])] += random.choice([-1, 1])


def hide(events: list[Any], random: Random) -> None:
    meta = random.choice(events)["meta_info"]
    del meta[random.choice(["completion_tokens", "prompt_tokens", "output_token_logprobs", "id"])]


def take_other(events: list[Any], random: Random) -> None:
    random.choice(events)["meta_info"]["id"] = "another"


def write_text(events: list[Any], random: Random) -> None:
    event = random.choice(events)
    event["text"] = event.pop("output_ids")


def end_otherwise(events: list[Any], random: Random) -> None:
    reasons: list[Any] = [None, {"type": "eos"}, {"type": "stop"}, {"type": "length"}]
    reasons += [{"type": "stop", "matched": matched} for matched in (EOS, 9, "NaN happened")]
    random.choice(events)["meta_info"]["finish_reason"] = random.choice(reasons)


DAMAGES: list[Callable[[list[Any], Random], None]] = [
    *(lose, repeat, swap, change_id, drop_id, count_otherwise, hide, take_other),
    *(write_text, end_otherwise),
]


@for_each(DAMAGES, name=lambda damage: damage.__name__)
def test_damaged_answer_never_gives_other_tokens(
    damage: Callable[[list[Any], Random], None],
) -> None:
    errors = list[Exception]()

    @given(answers, st.integers(0, 2**32))
    def check(answer: Answer, seed: int) -> None:
        damage(answer.events, Random(seed))
        ids, error = answer.read()
        if error is None:
            assert ids == answer.ids
        else:
            assert ids == answer.ids[: len(ids)]
            errors.append(error)

    check()
    assert errors, "this damage is never noticed"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[8], [8, 9], [9, 9, 10]], "changed or dropped"),
        ([[8, 9], [8, 9, 10], [8, 10]], "changed or dropped"),
        ([[8, 9], [8]], "changed or dropped"),
        ([[8], [8, 9], [8, 9, 10, 11]], None),
    ],
)
def test_repeating_stream_keeps_what_it_has_sent(
    parts: list[list[int]], message: str | None
) -> None:
    reader = SglangDialect().reader(request(), ServerRequest("", {"rid": "r"}))
    got = list[int]()

    def read() -> None:
        for ids in parts:
            meta = {"id": "r", "prompt_tokens": 3, "completion_tokens": len(ids)}
            event = {"output_ids": ids, "meta_info": meta}
            got.extend(reader.read(json.dumps(event).encode()).ids)

    if message is None:
        read()
        assert got == parts[-1]
    else:
        with pytest.raises(BadAnswer, match=message):
            read()

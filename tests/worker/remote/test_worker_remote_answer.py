"""Answers of servers: an honest one gives its tokens, and a damaged one never gives others.

Each answer goes as bytes through the client's lines, the reader of vLLM's events, and the judge.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.worker.engine import EngineDelta, EngineDied, EngineRequest
from services.worker.engines.remote.answer import AnswerJudge
from services.worker.engines.remote.dialect import ServerRequest
from services.worker.engines.remote.event_reader import AnswerChunk, BadAnswer, TurnEnd
from services.worker.engines.remote.http import MAX_EVENT_BYTES, EventLines, HttpRefusal
from services.worker.engines.remote.vllm.dialect import VllmDialect
from tests.kit.engines import PROMPT, ids_of, request
from tests.kit.every import for_each

VOCABULARY = 512
STOPS = [5, 7]
PROMPT_TOKENS = len(PROMPT)
Event = dict[str, Any]


@dataclass
class Answer:
    """An answer of vLLM to a turn, and what the turn must become."""

    ids: list[int]
    stop_id: int | None
    logprobs: int | None
    cached: int | None
    pieces: list[int]
    """How many tokens each event has."""
    deltas: list[EngineDelta] = field(default_factory=list)
    """What was passed on, also before an error."""

    @property
    def sent(self) -> list[int]:
        return self.ids if self.stop_id is None else [*self.ids, self.stop_id]

    @property
    def request(self) -> EngineRequest:
        most = len(self.ids) if self.stop_id is None else len(self.ids) + 3
        return request(stop_ids=STOPS, max_tokens=most, logprobs=self.logprobs)

    def events(self) -> list[Event]:
        events, at = list[Event](), 0
        while at < len(self.sent):
            size = self.pieces[len(events) % len(self.pieces)]
            ids = self.sent[at : at + size]
            at += len(ids)
            logprobs = None
            if self.logprobs is not None:
                logprobs = {"content": [_scored(token, self.logprobs) for token in ids]}
            choice = {"index": 0, "token_ids": ids, "logprobs": logprobs, "finish_reason": None}
            events.append({"choices": [choice], "usage": _usage(at)})
        reason = "length" if self.stop_id is None else "stop"
        events[-1]["choices"][0]["finish_reason"] = reason
        details = {"cached_tokens": self.cached}
        events.append({"choices": [], "usage": _usage(at) | {"prompt_tokens_details": details}})
        return events

    def read(self, data: bytes, pieces: Sequence[int] = (1 << 20,)) -> EngineDelta:
        """Returns the terminal delta. Raises EngineFailed."""
        self.deltas.clear()
        lines, reader = (
            EventLines(MAX_EVENT_BYTES),
            VllmDialect().reader(self.request, ServerRequest("", {})),
        )
        judge = AnswerJudge(self.request, PROMPT, VOCABULARY)
        at = number = 0
        while at < len(data):
            size = pieces[number % len(pieces)]
            for event in lines.feed(data[at : at + size]):
                if event == b"[DONE]":
                    break
                delta = judge.read(reader.read(event))
                if delta is not None:
                    self.deltas.append(delta)
            at += size
            number += 1
        self.deltas.append(judge.end())
        return self.deltas[-1]


def _scored(token: int, top: int) -> Event:
    others = [{"token_id": 100 + n, "logprob": -1.0 - n} for n in range(top)]
    return {"token_id": token, "logprob": -0.5, "top_logprobs": others}


def _usage(tokens: int) -> Event:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}


def written(events: Sequence[Event]) -> bytes:
    lines = [json.dumps(event) for event in events]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


answers = st.builds(
    Answer,
    ids=st.lists(st.integers(8, 99), min_size=1, max_size=24),
    stop_id=st.sampled_from([None, *STOPS]),
    logprobs=st.sampled_from([None, None, 0, 2]),
    cached=st.sampled_from([None, 0, 16, PROMPT_TOKENS]),
    pieces=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)


@given(answers, st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_honest_answer_gives_its_tokens(answer: Answer, pieces: list[int]) -> None:
    last = answer.read(written(answer.events()), pieces)
    assert ids_of(answer.deltas) == answer.ids
    assert (last.stop_id, last.cached) == (answer.stop_id, answer.cached)
    assert last.finish is (FinishReason.LENGTH if answer.stop_id is None else FinishReason.STOP)
    scored = [row for delta in answer.deltas for row in delta.logprobs or []]
    tops = [(100, -1.0), (101, -2.0)][: answer.logprobs]
    expected = [[(token, -0.5), *tops] for token in answer.ids]
    assert scored == ([] if answer.logprobs is None else expected)


# -- damage

Damage = Callable[[list[Event], Random], None]
"""Changes the events of an answer, of which the last one has no tokens."""


def lose(events: list[Event], random: Random) -> None:
    del events[random.randrange(len(events) - 1)]


def lose_end(events: list[Event], random: Random) -> None:
    del events[random.randrange(len(events)) :]


def repeat(events: list[Event], random: Random) -> None:
    at = random.randrange(len(events))
    events.insert(random.randint(at, len(events)), events[at])


def swap(events: list[Event], random: Random) -> None:
    one, other = random.randrange(len(events)), random.randrange(len(events))
    events[one], events[other] = events[other], events[one]


def replace_id(events: list[Event], random: Random) -> None:
    """By what is no token of the vocabulary, or by one that cannot be there."""
    ids = _choice(events, random)["token_ids"]
    at = random.randrange(len(ids))
    others = [9] if ids[at] in STOPS else STOPS
    ids[at] = random.choice((VOCABULARY, -1, 2**70, True, 8.0, 8.5, "8", None, [8], *others))


def add_id(events: list[Event], random: Random) -> None:
    ids = _choice(events, random)["token_ids"]
    ids.insert(random.randint(0, len(ids)), 9)


def go_on(events: list[Event], random: Random) -> None:
    """More tokens after the end, which are counted as if they belonged to it."""
    more = deepcopy(random.choice(events[:-1]))
    more["usage"] = _usage(events[-1]["usage"]["completion_tokens"])
    more["usage"]["completion_tokens"] += len(more["choices"][0]["token_ids"])
    events.insert(random.choice((len(events) - 1, len(events))), more)


def miscount(events: list[Event], random: Random) -> None:
    usage = random.choice(events)["usage"]
    usage[random.choice(["prompt_tokens", "completion_tokens"])] += random.choice((-1, 1))


def hide_counts(events: list[Event], random: Random) -> None:
    """Without counts, what is lost would not show."""
    lose(events, random)
    for event in events:
        event["usage"] = None


def write_text(events: list[Event], random: Random) -> None:
    choice = _choice(events, random)
    choice["text"] = "eight"
    choice["token_ids"] = random.choice((None, [], "eight"))


def lose_logprob(events: list[Event], random: Random) -> None:
    choice = _choice(events, random)
    if choice["logprobs"] is not None:
        content = choice["logprobs"]["content"]
        content.pop(random.randrange(len(content)))


def mix_logprobs(events: list[Event], random: Random) -> None:
    """Tokens that the log probabilities contradict."""
    choice = _choice(events, random)
    if choice["logprobs"] is not None:
        choice["token_ids"][0] = 300


def end_otherwise(events: list[Event], random: Random) -> None:
    reasons = ("stop", "length", "abort", "error", "repetition", "eos", "", None, 1)
    _choice(events, random)["finish_reason"] = random.choice(reasons)


def end_early(events: list[Event], random: Random) -> None:
    """With counts that fit."""
    del events[random.randrange(1, len(events)) : -1]
    events[-2]["choices"][0]["finish_reason"] = random.choice(("stop", "length"))
    events[-1]["usage"] = events[-2]["usage"]


def fail(events: list[Event], random: Random) -> None:
    events[random.randrange(len(events))] = {"error": {"message": "out of memory", "code": 500}}


def choose_twice(events: list[Event], random: Random) -> None:
    event = random.choice(events[:-1])
    event["choices"].insert(random.randrange(2), {**event["choices"][0], "index": 1})


def _choice(events: list[Event], random: Random) -> Any:
    return random.choice(events[:-1])["choices"][0]


DAMAGES: Sequence[Damage] = (
    *(lose, lose_end, repeat, swap, replace_id, add_id, go_on, miscount, hide_counts),
    *(write_text, lose_logprob, mix_logprobs, end_otherwise, end_early, fail, choose_twice),
)


@for_each(DAMAGES, name=lambda damage: damage.__name__)
def test_damaged_answer_never_gives_other_tokens(damage: Damage) -> None:
    """It gives the tokens, or an error after some of them."""
    failures = list[EngineFailed]()

    @given(answers, st.integers(0, 2**32))
    def check(answer: Answer, seed: int) -> None:
        events = deepcopy(answer.events())
        damage(events, Random(seed))
        error = _check(answer, written(events))
        if error is not None:
            failures.append(error)

    check()
    assert failures, "this damage is never noticed"


def test_turn_gets_no_more_tokens_than_it_requested() -> None:
    longer = Answer([8, 9, 10], None, None, None, [1])
    with pytest.raises(BadAnswer, match="more than 2 tokens"):
        Answer([8, 9], None, None, None, [1]).read(written(longer.events()))


@given(answers, st.floats(0, 1, exclude_max=True))
def test_cut_answer_never_gives_other_tokens(answer: Answer, part: float) -> None:
    data = written(answer.events())
    _check(answer, data[: int(part * len(data))])


def _check(answer: Answer, data: bytes) -> EngineFailed | None:
    """Returns the error of a damaged answer, if it has one."""
    error = None
    try:
        last = answer.read(data)
    except EngineFailed as failure:
        error = failure
    else:
        assert ids_of(answer.deltas) == answer.ids
        assert last.stop_id == answer.stop_id
        assert last.finish is not FinishReason.CANCELLED
    ids = ids_of(answer.deltas)
    assert ids == answer.ids[: len(ids)]
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [(500, EngineDied), (503, EngineDied), (400, HttpRefusal), ("x", EngineFailed)],
)
def test_turn_goes_on_after_an_error_of_the_server_itself(
    code: object, kind: type[Exception]
) -> None:
    answer = Answer([8, 9], None, None, None, [1])
    with pytest.raises(kind, match="it broke") as caught:
        answer.read(written([{"error": {"message": "it broke", "code": code}}]))
    assert type(caught.value) is kind


def test_turn_that_the_server_ended_goes_on() -> None:
    for reason in ("abort", "error"):
        answer = Answer([8, 9], None, None, None, [1])
        events = answer.events()
        events[1]["choices"][0] |= {"token_ids": [], "finish_reason": reason}
        with pytest.raises(EngineDied, match=reason):
            answer.read(written(events))


def test_what_was_not_asked_for_is_not_passed_on() -> None:
    """Log probabilities; and a second report of the cache."""
    answer = Answer([8, 9], None, None, 16, [1])
    events = answer.events()
    events[0]["usage"]["prompt_tokens_details"] = {"cached_tokens": 16}
    events[0]["choices"][0]["logprobs"] = {"content": [_scored(8, 0)]}
    answer.read(written(events))
    assert [delta.logprobs for delta in answer.deltas] == [None, None]
    assert [delta.cached for delta in answer.deltas] == [16, None]


def test_other_tokens_outside_the_vocabulary_are_no_log_probabilities() -> None:
    answer = Answer([8], 7, 1, None, [2])
    events = answer.events()
    events[0]["choices"][0]["logprobs"]["content"][1]["top_logprobs"][0]["token_id"] = VOCABULARY
    with pytest.raises(BadAnswer, match="vocabulary"):
        answer.read(written(events))


@pytest.mark.parametrize(
    "chunk",
    [
        AnswerChunk([8, 9], [[(8, -0.5)], [], [(9, -0.5)]]),
        AnswerChunk([8], [[(8, -0.5)]], TurnEnd(FinishReason.STOP, 7)),
    ],
)
def test_row_of_log_probabilities_is_neither_empty_nor_missing(chunk: AnswerChunk) -> None:
    judge = AnswerJudge(request(stop_ids=[7], logprobs=0), PROMPT, VOCABULARY)
    with pytest.raises(BadAnswer, match="log probabilities are missing"):
        judge.read(chunk)

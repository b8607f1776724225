"""Stored turns are read as they were, in any order, and are small."""

import random
from array import array
from itertools import pairwise
from operator import attrgetter

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import Call, Client, Text
from schemas.events import FinishReason, PromptImage, WeightsSpan
from services.rollouts.stored_turns import (
    FollowedRun,
    StoredRun,
    StoredTurn,
    pack_turn,
)
from services.rollouts.turn import SampleBlock, SampledTurn, digest_of

WRITTEN: list[Text | Call] = [Text("I look."), Call("toolu_1", "Bash", '{"command": "ls"}')]
OTHER = {
    "blocks": [SampleBlock("text", 0, 3), SampleBlock("tool_use", 4, 9, "Bash", "toolu_1")],
    "written": WRITTEN,
    "opening": "<|im_start|>assistant\n",
    "images": [PromptImage("ab", 1, 2)],
    "weights": [WeightsSpan(0, 3), WeightsSpan(2, 4)],
    "experts": "e.npy",
}


decode = msgspec.msgpack.Decoder(StoredTurn).decode


def encoded(made: SampledTurn, base: SampledTurn | None, run: int) -> bytes:
    return msgspec.msgpack.encode(pack_turn(made, base, run))


def turn(
    name: str, prompt: list[int], output: list[int], ended: float, **fields: object
) -> SampledTurn:
    made = SampledTurn(
        name,
        ended - 1.0,
        ended,
        "m",
        Client("s"),
        array("I", prompt),
        array("I", output),
        FinishReason.STOP,
        output[-1],
    )
    return replace(made, **fields)


def session(turns: int, first: int, new: int) -> list[SampledTurn]:
    """A session of which each turn writes half of `new` ids, and is answered with the rest."""
    ids = [*range(first)]
    answers: list[bytes] = []
    made = []
    draw = random.Random(1)
    for n in range(turns):
        output = [draw.randrange(150_000) for _ in range(new // 2)]
        logprobs: list[float | None] = [-(n + 1) / (place + 1) for place in range(len(output))]
        fields = {**OTHER, "answers": [*answers], "question": ["Fix it."], "logprobs": logprobs}
        made.append(turn(f"t{n}", ids, output, 100.0 + n, **fields))
        answers.append(digest_of(WRITTEN))
        ids = ids + output + [draw.randrange(150_000) for _ in range(new // 2)]
    return made


def is_equal(read: SampledTurn, made: SampledTurn) -> bool:
    """Equal, log probabilities in the precision of their record."""
    packed = array("f", [x for x in made.logprobs if x is not None])
    same = [x for x in read.logprobs if x is not None] == packed.tolist()
    return same and replace(read, logprobs=[]) == replace(made, logprobs=[])


@given(st.data())
def test_turns_are_read_in_any_order_whatever_their_base(data: st.DataObject) -> None:
    made: list[SampledTurn] = []
    values = []
    ids = st.lists(st.integers(0, 3), max_size=6)
    for n in range(data.draw(st.integers(1, 6))):
        base = data.draw(st.sampled_from([None, *made]))
        prompt = data.draw(ids)
        if base is not None and data.draw(st.booleans()):
            prompt = [*base.prompt, *base.output, *prompt]
        output = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        logprobs = data.draw(
            st.one_of(
                st.just([]),
                st.lists(st.sampled_from([None, -0.5]), min_size=len(output), max_size=len(output)),
            )
        )
        answers = [bytes([byte]) * 8 for byte in data.draw(st.lists(st.integers(0, 1), max_size=3))]
        question = data.draw(st.sampled_from([[], ["a"], ["b", "c"]]))
        fields = {"logprobs": logprobs, "answers": answers, "question": question}
        one = turn(f"t{n}", prompt, output, float(n), **fields)
        values.append(encoded(one, base, 1))
        made.append(one)
    assert [*StoredRun(map(decode, values), 1).turns()] == made
    shuffled = data.draw(st.permutations(values))
    run = StoredRun(map(decode, shuffled), 1)
    assert sorted(run.turns(), key=attrgetter("id")) == made
    assert run.unreadable == []


def test_turn_with_a_lost_base_is_named_and_so_are_those_after_it() -> None:
    turns = session(4, 10, 10)
    values = [encoded(turns[0], None, 1)]
    values += [encoded(later, base, 1) for base, later in pairwise(turns)]
    del values[1]
    run = StoredRun(map(decode, values), 1)
    (read,) = run.turns()
    assert is_equal(read, turns[0])
    assert sorted(run.unreadable) == ["t2", "t3"]


def test_turns_of_other_runs_are_left_out() -> None:
    turns = session(1, 3, 4)
    run = StoredRun([pack_turn(turns[0], None, 1)], 2)
    assert ([*run.turns()], run.unreadable) == ([], [])
    assert [*FollowedRun(2).turns([pack_turn(turns[0], None, 1)])] == []


def test_follower_reads_turns_as_they_are_written() -> None:
    turns = session(4, 10, 10)
    stored = [pack_turn(turns[0], None, 1)]
    stored += [pack_turn(later, base, 1) for base, later in pairwise(turns)]
    run = FollowedRun(1)
    for record, made in zip(stored, turns, strict=True):
        (read,) = run.turns([record])
        assert is_equal(read, made)
    assert run.unreadable == []
    late = FollowedRun(1)
    assert [*late.turns(stored[2:])] == []
    assert late.unreadable == ["t2", "t3"]


def test_turn_of_a_long_session_takes_a_few_kilobytes() -> None:
    turns = session(100, 20_000, 300)
    values = [encoded(turns[0], None, 1)]
    values += [encoded(later, base, 1) for base, later in pairwise(turns)]
    assert max(map(len, values[1:])) < 4096
    for read, made in zip(StoredRun(map(decode, values), 1).turns(), turns, strict=True):
        assert is_equal(read, made)

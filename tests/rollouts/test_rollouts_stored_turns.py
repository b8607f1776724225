"""Stored turns are read as they were, in any order, and are small."""

import random
from array import array
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import Call, Client, Text
from schemas.events import UNKNOWN_WEIGHTS, FinishReason, PromptImage, WeightsSpan
from services.rollouts.sampled_turn import SampleBlock, SampledTurn, digest_of
from services.rollouts.stored_turns import StoredTurn, StoredTurnReader, pack_turn

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
        id=name,
        time=ended - 1.0,
        ended=ended,
        model="m",
        client=Client("s"),
        prompt=array("I", prompt),
        output=array("I", output),
        reason=FinishReason.STOP,
        stop_id=output[-1],
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
def test_turns_are_read_whatever_their_base(data: st.DataObject) -> None:
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
    reader = StoredTurnReader(1)
    assert [*reader.read(map(decode, values))] == made
    assert reader.unreadable == []


def test_turn_with_a_lost_base_is_named_and_so_are_those_after_it() -> None:
    turns = session(4, 10, 10)
    values = [encoded(turns[0], None, 1)]
    values += [encoded(later, base, 1) for base, later in pairwise(turns)]
    del values[1]
    reader = StoredTurnReader(1)
    (read,) = reader.read(map(decode, values))
    assert is_equal(read, turns[0])
    assert reader.unreadable == ["t2", "t3"]


def test_turns_of_other_runs_are_left_out() -> None:
    reader = StoredTurnReader(2)
    assert [*reader.read([pack_turn(session(1, 3, 4)[0], None, 1)])] == []
    assert reader.unreadable == []


def test_turn_is_read_however_many_turns_lie_between_it_and_its_base() -> None:
    """A helper of many turns works between two turns of the main conversation."""
    main = session(2, 10, 10)
    helper = [replace(made, id=f"h{made.id}", ended=100.0) for made in session(70, 20, 10)]
    stored = [pack_turn(main[0], None, 1), pack_turn(helper[0], None, 1)]
    stored += [pack_turn(later, base, 1) for base, later in pairwise(helper)]
    stored.append(pack_turn(main[1], main[0], 1))
    *_, last = StoredTurnReader(1).read(stored)
    assert is_equal(last, main[1])


def test_oldest_version_that_may_have_decoded_a_turn() -> None:
    """Tokens of unknown weights count as of the newest ones when it began."""
    unknown = WeightsSpan(0, UNKNOWN_WEIGHTS)
    for spans, newest, version in (
        ([], 5, 0),
        ([WeightsSpan(0, 3)], 5, 3),
        ([WeightsSpan(2, 3)], 5, 0),
        ([WeightsSpan(0, 5), WeightsSpan(1, 1)], 5, 1),
        ([unknown], 5, 5),
        ([unknown, WeightsSpan(2, 6)], 5, 5),
        ([unknown, WeightsSpan(2, 3)], 5, 3),
        ([unknown, WeightsSpan(2, 3)], -7, 3),
        ([unknown], -7, None),
    ):
        made = turn("t", [1], [2, 3, 4], 1.0, weights=spans)
        assert pack_turn(made, None, 1, newest).oldest_version == version


def test_turn_of_a_long_session_takes_a_few_kilobytes() -> None:
    turns = session(100, 20_000, 300)
    values = [encoded(turns[0], None, 1)]
    values += [encoded(later, base, 1) for base, later in pairwise(turns)]
    assert max(map(len, values[1:])) < 4096
    for read, made in zip(StoredTurnReader(1).read(map(decode, values)), turns, strict=True):
        assert is_equal(read, made)

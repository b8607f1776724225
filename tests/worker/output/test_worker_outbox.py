"""The worker's outbox: what is ready is sent, what was lost is sent again, what is done is
dropped."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from schemas.control import Replay, StreamPosition
from schemas.events import FinishReason
from schemas.frames import TokenEntry
from schemas.requests import ABSENT
from services.worker.engine import LOWEST_LOGPROB, EngineDelta
from services.worker.output.outbox import UNSENDABLE, Outbox
from services.worker.output.token_stream import GONE, TOKEN_BYTES, TokenStream
from tests.kit.every import for_each

CONTEXT = Raw(b'{"model":"m"}')
FRAME_TOKENS = 1000
END = FinishReason.STOP


def outbox() -> Outbox:
    return Outbox("w1", frame_bytes=FRAME_TOKENS * TOKEN_BYTES, linger_s=10.0)


def opened(
    box: Outbox, turn: str = "t1", parser: str = "p1", *, context: Raw = CONTEXT
) -> TokenStream:
    """A new stream of the box."""
    made = TokenStream(turn=turn, attempt=1, frontend="f1", context=context, ids=[])
    box.open(made, parser)
    return made


def send(turn: TokenStream, delta: EngineDelta) -> None:
    """A step of the engine, which goes out with the next frame."""
    turn.add(delta)
    turn.schedule()


def filled(box: Outbox, parser: str, seq: int) -> list[TokenEntry]:
    """The entries of the next frame, which has something."""
    frame = box.fill(parser, seq)
    assert frame is not None
    return frame.entries


def ended(box: Outbox, turn: str, seq: int, now: float = 0.0) -> TokenStream:
    """A turn that came, was sent in frame `seq` and ended."""
    made = opened(box, turn)
    send(made, EngineDelta([seq], finish=END))
    box.fill("p1", seq)
    box.streams.end(made, now)
    return made


def test_one_frame_holds_all_streams_of_a_shard() -> None:
    box = outbox()
    for turn, parser in (("a", "p1"), ("b", "p2"), ("c", "p1")):
        s = opened(box, turn, parser)
        send(s, EngineDelta([1, 2]))
    entries = filled(box, "p1", 1)
    assert [entry.turn for entry in entries] == ["a", "c"]
    assert entries[0] == TokenEntry("a", 1, 0, [1, 2], CONTEXT)
    assert box.fill("p1", 2) is None
    assert box.fill("p2", 1) is not None


def test_context_and_cached_count_are_sent_once_and_again_after_a_replay() -> None:
    box = outbox()
    s = opened(box)
    sent = list[TokenEntry]()
    for n in range(3):
        send(s, EngineDelta([n], cached=3 if n == 1 else None, finish=END if n == 2 else None))
        sent += filled(box, "p1", n + 1)
    assert [(one.at, one.ids) for one in sent] == [(0, [0]), (1, [1]), (2, [2])]
    assert [one.context for one in sent] == [CONTEXT, ABSENT, ABSENT]
    assert [one.cached for one in sent] == [None, 3, None]
    box.replay(Replay("p1", [StreamPosition("t1", 1, 2)]))
    (again,) = filled(box, "p1", 4)
    assert (again.at, again.ids, again.cached) == (2, [2], 3)
    assert again.finish == sent[2].finish


def test_a_long_backlog_is_cut_into_frames_and_the_end_comes_last() -> None:
    box = outbox()
    s = opened(box)
    s.schedule()
    assert box.fill("p1", 0) is not None  # the parse context
    send(s, EngineDelta(list(range(FRAME_TOKENS + 5)), finish=FinishReason.LENGTH))
    (first,), (second,) = filled(box, "p1", 1), filled(box, "p1", 2)
    assert (len(first.ids), first.finish) == (FRAME_TOKENS, None)
    assert second.at == FRAME_TOKENS
    assert second.finish is not None
    assert box.fill("p1", 3) is None


def test_replay_of_all_begins_unnamed_streams_again_with_their_context() -> None:
    box = outbox()
    for turn, parser in (("a", "p1"), ("b", "p1"), ("c", "p2")):
        send(opened(box, turn, parser), EngineDelta([1, 2]))
    box.fill("p1", 1)
    box.fill("p2", 1)
    box.replay(Replay("p1", [StreamPosition("a", 1, 2)], all=True))
    assert filled(box, "p1", 2) == [TokenEntry("b", 1, 0, [1, 2], CONTEXT)]
    assert box.fill("p2", 2) is None


def test_a_delivered_turn_is_not_replayed_but_moves_to_another_shard() -> None:
    box = outbox()
    ended(box, "t1", 4)
    box.credited("p1", 4)
    box.replay(Replay("p1", all=True))
    assert box.fill("p1", 5) is None
    assert box.move("p1", "p2") == 1
    assert filled(box, "p2", 1)[0].context == CONTEXT


def test_an_end_that_was_lost_is_not_delivered_by_the_credit_of_its_frame() -> None:
    box = outbox()
    s = ended(box, "t1", 1)
    box.replay(Replay("p1", all=True))  # the receiver saw a hole at 1 …
    box.credited("p1", 1)  # … and gave the frame up
    assert not s.delivered
    assert filled(box, "p1", 2)[0].finish is not None


def test_finished_turns_are_dropped_after_a_while() -> None:
    box = outbox()
    for n in range(4):
        ended(box, f"t{n}", n + 1, float(n))
    box.credited("p1", 3)
    box.streams.expire(11.5)
    assert [s.turn for s in box.streams] == ["t2", "t3"], "the others arrived 10 s before"
    box.streams.expire(12.5)
    assert [s.turn for s in box.streams] == ["t3"], "it did not arrive"
    box.streams.linger_again(500.0)  # the process was cut off: it could not be sent before
    box.streams.expire(515.0)
    assert [s.turn for s in box.streams] == ["t3"]
    box.streams.expire(600.0)
    assert filled(box, "p1", 5) == [TokenEntry("t3", 1, 1, finish=GONE)]
    assert box.fill("p1", 6) is None


def test_a_frame_has_its_limit_in_bytes() -> None:
    """Contexts and log probabilities weigh more than ids."""
    box = Outbox("w1", frame_bytes=10_000, linger_s=10.0)
    context = Raw(b'"' + b"x" * 6000 + b'"')
    for n in range(5):
        s = opened(box, f"t{n}", context=context)
        send(s, EngineDelta([1, 2]))
    sizes: list[int] = []
    while (frame := box.fill("p1", len(sizes) + 1)) is not None:
        sizes.append(len(frame.entries))
    assert sizes == [1, 1, 1, 1, 1]
    send(s, EngineDelta([1] * 100, logprobs=[[(1, -0.123456789)] * 20] * 100))
    while (frame := box.fill("p1", len(sizes) + 1)) is not None:
        sizes.append(len(msgspec.json.encode(frame)))
    assert len(sizes) > 10
    assert max(sizes) < 10_000


def test_resumed_tokens_are_sent_as_if_decoded_here() -> None:
    box = outbox()
    s = TokenStream(turn="t", attempt=1, frontend="f1", context=CONTEXT, ids=[5, 6])
    box.open(s, "p1")
    send(s, EngineDelta([7], logprobs=[[(7, float("-inf")), (4, -0.5)]]))
    (entry,) = filled(box, "p1", 1)
    assert (entry.at, entry.ids) == (0, [5, 6, 7])
    assert entry.logprobs == [[], [], [(7, LOWEST_LOGPROB), (4, -0.5)]]


def test_a_missing_stream_is_ended_where_it_is_requested() -> None:
    """The shard that requests it still waits for its end."""
    box = outbox()
    box.replay(Replay("p1", [StreamPosition("gone", 2, 7)], all=True))
    assert filled(box, "p1", 1) == [TokenEntry("gone", 2, 7, finish=GONE)]
    assert box.fill("p1", 2) is None
    assert box.fill("p2", 1) is None


def test_an_entry_that_cannot_be_encoded_ends_only_its_stream() -> None:
    box = outbox()
    streams = [opened(box, turn) for turn in "abc"]
    for s in streams:
        send(s, EngineDelta([1, 2], cached=0))
    assert box.fill("p1", 1) is not None
    for s in streams:
        logprobs: Any = [[(object(), -0.5)]] if s.turn == "b" else None
        send(s, EngineDelta([3], logprobs=logprobs))
    frame = box.fill("p1", 2)
    with pytest.raises(TypeError):
        msgspec.json.encode(frame)
    assert frame is not None
    assert box.take_back("p1", frame)
    assert [s.turn for s in box.broken] == ["b"]
    again = filled(box, "p1", 2)
    msgspec.json.encode(again)
    assert {one.turn: one.ids for one in again} == {"a": [3], "b": [], "c": [3]}
    errors = {one.turn: one.finish and one.finish.error for one in again}
    assert errors == {"a": None, "b": UNSENDABLE, "c": None}


@for_each([-1, 1 << 32, 1.5, object()])
def test_an_id_that_is_no_token_ends_only_its_stream(bad: Any) -> None:
    """Whatever the engine: only those of other servers are compared with the vocabulary."""
    box = outbox()
    streams = [opened(box, turn) for turn in "abc"]
    for s in streams:
        send(s, EngineDelta([1, 2], cached=0))
    assert box.fill("p1", 1) is not None
    for s in streams:
        send(s, EngineDelta([3, bad] if s.turn == "b" else [3]))
    entries = filled(box, "p1", 2)
    assert [s.turn for s in box.broken] == ["b"]
    assert {one.turn: one.ids for one in entries} == {"a": [3], "b": [], "c": [3]}
    errors = {one.turn: one.finish and one.finish.error for one in entries}
    assert errors == {"a": None, "b": UNSENDABLE, "c": None}


def test_a_frame_has_the_time_at_which_it_is_sent() -> None:
    box = outbox()
    send(opened(box, "a", "p1"), EngineDelta([1]))
    frame = box.fill("p1", 1, 1795976051.5)
    assert frame is not None
    assert frame.time == 1795976051.5

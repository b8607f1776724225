"""The worker's outbox: what is ready is sent, what was lost is sent again, what is done is
dropped."""

import msgspec
import pytest
from msgspec import Raw

from schemas.control import Replay, StreamPosition
from schemas.events import FinishReason
from schemas.frames import ABSENT, TokenEntry, TokenFinish, TokenFrame
from services.worker.engine import LOWEST_LOGPROB, EngineDelta
from services.worker.output.outbox import GONE, UNSENDABLE, Outbox
from services.worker.output.token_stream import TOKEN_BYTES, TokenStream

CONTEXT = Raw(b'{"model":"m"}')
FRAME_TOKENS = 1000


def stream(turn: str = "t1", resume: list[int] | None = None) -> TokenStream:
    return TokenStream(turn=turn, attempt=1, frontend="f1", context=CONTEXT, ids=resume or [])


def outbox() -> Outbox:
    return Outbox("w1", frame_bytes=FRAME_TOKENS * TOKEN_BYTES, linger_s=10.0)


def opened(resume: list[int] | None = None) -> tuple[Outbox, TokenStream]:
    """An outbox with one turn, for the shard p1."""
    box, made = outbox(), stream(resume=resume)
    box.open(made, "p1")
    return box, made


def send(turn: TokenStream, delta: EngineDelta) -> None:
    """A step of the engine, which goes out with the next frame."""
    turn.add(delta)
    turn.schedule()


def filled(box: Outbox, parser: str, seq: int) -> TokenFrame:
    """The next frame, which has something."""
    frame = box.fill(parser, seq)
    assert frame is not None
    return frame


def test_one_frame_holds_all_streams_of_a_shard() -> None:
    box = outbox()
    for turn, parser in (("a", "p1"), ("b", "p2"), ("c", "p1")):
        s = stream(turn)
        box.open(s, parser)
        send(s, EngineDelta([1, 2]))
    frame = filled(box, "p1", 1)
    assert [entry.turn for entry in frame.entries] == ["a", "c"]
    assert frame.entries[0] == TokenEntry("a", 1, 0, [1, 2], CONTEXT)
    s.schedule()  # though nothing is to be sent
    assert box.fill("p1", 2) is None
    assert box.fill("p2", 1) is not None


def test_only_the_first_entry_carries_the_context() -> None:
    box, s = opened()
    send(s, EngineDelta([1], cached=7))
    box.fill("p1", 1)
    s.add(EngineDelta([2, 3]))
    send(s, EngineDelta([4], finish=FinishReason.STOP, stop_id=9))
    frame = filled(box, "p1", 2)
    entry = frame.entries[0]
    assert (entry.at, entry.ids, entry.context) == (1, [2, 3, 4], ABSENT)
    assert entry.finish is not None
    assert entry.finish.stop_id == 9


def test_the_cached_count_is_sent_once_and_again_after_a_replay() -> None:
    box, s = opened()
    told = []
    for n in range(3):
        send(s, EngineDelta([n], cached=3 if n == 1 else None))
        frame = filled(box, "p1", n + 1)
        told.append(frame.entries[0].cached)
    assert told == [None, 3, None]
    box.replay(Replay("p1", [StreamPosition("t1", 1, 2)]))
    frame = filled(box, "p1", 4)
    assert frame.entries[0].cached == 3


def test_a_long_backlog_is_cut_into_frames_and_the_end_comes_last() -> None:
    box, s = opened()
    s.schedule()
    assert box.fill("p1", 0) is not None  # the parse context
    send(s, EngineDelta(list(range(FRAME_TOKENS + 5)), finish=FinishReason.LENGTH))
    first, second = box.fill("p1", 1), box.fill("p1", 2)
    assert first is not None
    assert second is not None
    assert len(first.entries[0].ids) == FRAME_TOKENS
    assert first.entries[0].finish is None
    assert second.entries[0].at == FRAME_TOKENS
    assert second.entries[0].finish is not None
    assert box.fill("p1", 3) is None


def test_replay_starts_where_the_receiver_stands() -> None:
    box, s = opened()
    send(s, EngineDelta([1, 2, 3]))
    box.fill("p1", 1)
    box.replay(Replay("p1", [StreamPosition("t1", 1, 2)]))
    frame = filled(box, "p1", 2)
    assert (frame.entries[0].at, frame.entries[0].ids) == (2, [3])


def test_replay_of_all_begins_unnamed_streams_again_with_their_context() -> None:
    box = outbox()
    for turn in ("a", "b", "c"):
        s = stream(turn)
        box.open(s, "p1" if turn != "c" else "p2")
        send(s, EngineDelta([1, 2]))
    box.fill("p1", 1)
    box.fill("p2", 1)
    box.replay(Replay("p1", [StreamPosition("a", 1, 2)], all=True))
    frame = filled(box, "p1", 2)
    assert [(e.turn, e.at, e.ids, e.context) for e in frame.entries] == [("b", 0, [1, 2], CONTEXT)]
    assert box.fill("p2", 2) is None


def test_a_delivered_turn_is_not_replayed_but_moves_to_another_shard() -> None:
    box, s = opened()
    send(s, EngineDelta([1], finish=FinishReason.STOP))
    box.fill("p1", 4)
    box.end(s, 0.0)
    box.credited("p1", 4)
    box.replay(Replay("p1", all=True))
    assert box.fill("p1", 5) is None
    assert box.move("p1", "p2") == 1
    frame = filled(box, "p2", 1)
    assert frame.entries[0].context == CONTEXT


def test_streams_that_a_leaving_shard_delivered_are_dropped() -> None:
    box = outbox()
    ended(box, "passed on", 1, 0.0)
    other = stream("of another frontend")
    other.frontend = "f2"
    box.open(other, "p1")
    send(other, EngineDelta([1], finish=FinishReason.STOP))
    box.fill("p1", 2)
    box.end(other, 0.0)
    box.credited("p1", 2)
    ended(box, "under way", 3, 0.0)
    decoding = stream("decoding")
    box.open(decoding, "p1")
    box.confirm("p1", {"f1"})
    assert [s.turn for s in box.streams()] == ["decoding", "of another frontend", "under way"]
    assert box.move("p1", "p2") == 3
    assert list(box.undelivered()) != []


def test_an_end_that_was_lost_is_not_delivered_by_the_credit_of_its_frame() -> None:
    box, s = opened()
    send(s, EngineDelta([1], finish=FinishReason.STOP))
    box.fill("p1", 1)
    box.end(s, 0.0)
    box.replay(Replay("p1", all=True))  # the receiver saw a hole at 1 …
    box.credited("p1", 1)  # … and gave the frame up
    assert not s.delivered
    frame = filled(box, "p1", 2)
    assert frame.entries[0].finish is not None
    box.credited("p1", 2)
    assert s.delivered


def ended(box: Outbox, turn: str, seq: int, now: float) -> TokenStream:
    """A turn that came, was sent in frame `seq` and ended."""
    s = stream(turn)
    box.open(s, "p1")
    send(s, EngineDelta([seq], finish=FinishReason.STOP))
    box.fill("p1", seq)
    box.end(s, now)
    return s


def test_finished_turns_are_dropped_after_a_while() -> None:
    box = outbox()
    for n in range(4):
        ended(box, f"t{n}", n + 1, float(n))
    box.credited("p1", 3)
    box.expire(11.5)
    assert [s.turn for s in box.streams()] == ["t2", "t3"], (
        "the others arrived, and have lingered for ten seconds"
    )
    box.expire(12.5)
    assert [s.turn for s in box.streams()] == ["t3"], "it did not arrive"
    box.expire(100.0)
    assert list(box.streams()) == []


def test_streams_linger_again_after_the_process_was_cut_off() -> None:
    box, s = opened()
    send(s, EngineDelta([1], finish=FinishReason.STOP))
    box.end(s, 0.0)
    box.attached(500.0)
    box.expire(515.0)
    frame = filled(box, "p1", 1)
    assert [(entry.turn, entry.ids) for entry in frame.entries] == [("t1", [1])], (
        "it could not be sent before"
    )


def test_a_turn_that_is_dropped_before_its_shard_has_it_is_ended_there() -> None:
    box = outbox()
    dropped = ended(box, "t1", 1, now=0.0)
    box.expire(100.0)
    frame = filled(box, "p1", 2)
    assert [(entry.turn, entry.finish) for entry in frame.entries] == [(dropped.turn, GONE)]
    assert box.fill("p1", 3) is None


def test_no_more_turns_linger_than_may() -> None:
    box = Outbox("w1", frame_bytes=FRAME_TOKENS * TOKEN_BYTES, linger_s=10.0, max_lingering=2)
    for n in range(4):
        ended(box, f"t{n}", n + 1, 0.0)
    assert box.move("p1", "p2") == 2


def test_a_frame_has_its_limit_in_bytes() -> None:
    """Contexts and log probabilities weigh more than ids."""
    box = Outbox("w1", frame_bytes=10_000, linger_s=10.0)
    context = Raw(b'"' + b"x" * 6000 + b'"')
    for n in range(5):
        s = TokenStream(turn=f"t{n}", attempt=1, frontend="f1", context=context, ids=[])
        box.open(s, "p1")
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
    box, s = opened([5, 6])
    send(s, EngineDelta([7], logprobs=[[(7, -0.5)]]))
    frame = filled(box, "p1", 1)
    entry = frame.entries[0]
    assert (entry.at, entry.ids) == (0, [5, 6, 7])
    assert entry.logprobs == [[], [], [(7, -0.5)]]


def test_a_former_attempt_ends_beside_the_new() -> None:
    """Its shard may be another one, and must not wait for ever."""
    box, old = outbox(), stream()
    box.open(old, "p1")
    new = TokenStream(turn="t1", attempt=2, frontend="f1", context=CONTEXT, ids=[])
    box.open(new, "p2")
    for s in (old, new):
        send(s, EngineDelta([1]))
    old.end(TokenFinish(FinishReason.CANCELLED))
    old.schedule()
    box.end(old, 0.0)
    frames = [box.fill("p1", 1), box.fill("p2", 1)]
    assert [f.entries[0].attempt for f in frames if f is not None] == [1, 2]
    assert frames[0] is not None
    assert frames[0].entries[0].finish == TokenFinish(FinishReason.CANCELLED)
    assert box.busy
    assert list(box.undelivered()) == [old]
    box.replay(Replay("p1", [StreamPosition("t1", 2, 0)]))
    assert box.fill("p1", 2) is None, "that attempt is not here"


def test_infinite_log_probabilities_are_sent_as_the_lowest() -> None:
    s = stream()
    values = [(1, float("-inf")), (2, float("nan")), (3, -1e9), (4, -0.5)]
    s.add(EngineDelta([1], logprobs=[values]))
    assert s.logprobs == [[*((token, LOWEST_LOGPROB) for token in (1, 2, 3)), (4, -0.5)]]


def test_a_missing_stream_is_ended_where_it_is_requested() -> None:
    """The shard that requests it still waits for its end."""
    box = outbox()
    box.replay(Replay("p1", [StreamPosition("gone", 2, 7)], all=True))
    frame = filled(box, "p1", 1)
    (entry,) = frame.entries
    assert (entry.turn, entry.attempt, entry.at, entry.ids) == ("gone", 2, 7, [])
    assert entry.finish == GONE
    assert box.fill("p1", 2) is None
    assert box.fill("p2", 1) is None


def test_an_entry_that_cannot_be_encoded_ends_only_its_stream() -> None:
    box = Outbox("w1", frame_bytes=10_000, linger_s=10.0)
    streams = [stream(turn) for turn in "abc"]
    for s in streams:
        box.open(s, "p1")
        send(s, EngineDelta([1, 2], cached=0))
    assert box.fill("p1", 1) is not None
    for s in streams:
        s.add(EngineDelta([3, object()] if s.turn == "b" else [3]))  # type: ignore[list-item]
        s.schedule()
    frame = filled(box, "p1", 2)
    with pytest.raises(TypeError):
        msgspec.json.encode(frame)
    assert box.take_back("p1", frame)
    assert [s.turn for s in box.take_broken()] == ["b"]
    assert box.take_broken() == [], "each once"
    again = filled(box, "p1", 2)
    assert msgspec.json.decode(msgspec.json.encode(again), type=TokenFrame) == again
    assert [
        (one.turn, one.at, one.ids, one.finish and one.finish.error) for one in again.entries
    ] == [
        ("a", 2, [3], None),
        ("b", 2, [], UNSENDABLE),
        ("c", 2, [3], None),
    ]
    assert box.fill("p1", 3) is None
    assert not box.take_back("p1", again), "nothing was to blame"
    assert box.fill("p1", 3) is not None


def test_a_stream_that_breaks_the_filling_of_a_frame_takes_no_other_with_it() -> None:
    box = outbox()
    streams = [stream(turn) for turn in "abc"]
    for s in streams:
        box.open(s, "p1")
        send(s, EngineDelta([1], cached=0))
    streams[1].logprobs = object()  # type: ignore[assignment]
    with pytest.raises(TypeError):
        box.fill("p1", 1)
    frame = filled(box, "p1", 1)
    assert box.take_broken() == [streams[1]]
    errors = {one.turn: one.finish and one.finish.error for one in frame.entries}
    assert errors == {"a": None, "b": UNSENDABLE, "c": None}

"""A turn's log can be read from anywhere, and a cursor takes each event once, whatever is lost or
said again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from schemas.events import (
    MAX_DISPATCH,
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    LoggedEvent,
    OutputTokens,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from services.runtime.streams.cursor import Cursor, Verdict
from services.runtime.streams.turn_log import TurnLog

KINDS = ("reasoning", "text", "tool_use")


@st.composite
def turns(draw: st.DrawFn) -> list[LoggedEvent]:
    """A whole turn, cut into small deltas."""
    events: list[LoggedEvent] = []
    blocks = draw(
        st.lists(
            st.tuples(st.sampled_from(KINDS), st.lists(st.text(min_size=1, max_size=5), max_size=6))
        )
    )
    for index, (kind, pieces) in enumerate(blocks):
        call = ("f", f"c{index}") if kind == "tool_use" else ()
        events.append(BlockStart(index, kind, *call))  # type: ignore[arg-type]
        offset = 0
        for piece in pieces:
            events.append(Delta(index, offset, piece))
            offset += len(piece)
        complete = kind != "tool_use" or draw(st.booleans())
        if kind == "tool_use" and complete:
            events.append(Dispatch(index, f"c{index}", "f", "".join(pieces)))
        events.append(BlockStop(index, complete, offset))
    events.append(Finish(FinishReason.STOP, len(blocks), Usage()))
    return events


def joined(events: list[LoggedEvent]) -> list[LoggedEvent]:
    """Neighbouring deltas as one."""
    out: list[LoggedEvent] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Delta) and isinstance(last, Delta):
            out[-1] = Delta(last.block, last.offset, last.text + event.text)
        else:
            out.append(event)
    return out


def inseparable(events: list[LoggedEvent]) -> list[list[LoggedEvent]]:
    """What a read gives only together: a call's dispatch and its stop, and else each event."""
    parts: list[list[LoggedEvent]] = []
    for event in events:
        if parts and isinstance(parts[-1][0], Dispatch) and isinstance(event, BlockStop):
            parts[-1].append(event)
        else:
            parts.append([event])
    return parts


@given(turns(), st.randoms(use_true_random=False))
def test_a_lossy_repeating_channel_with_replay_loses_and_doubles_nothing(
    events: list[LoggedEvent], chance: random.Random
) -> None:
    """Events are read in rooms of any size, dropped, doubled and swapped at will, a call's dispatch
    with its stop; gaps are answered by a replay from the receiver's position."""
    log, sent, receiver, got = TurnLog(), Cursor(), Cursor(), list[LoggedEvent]()
    for event in events:
        log.append(event)
    for attempt in range(2000):
        room = chance.randint(1, 12)
        batch, left = log.read(sent, room)
        text = sum(len(event.text) for event in batch if isinstance(event, Delta))
        calls = sum(len(event.arguments) for event in batch if isinstance(event, Dispatch))
        assert text <= room
        assert left == max(room - text - calls, 0)
        parts = inseparable(batch)
        if attempt < 20:
            parts = [part for part in parts if chance.random() > 0.3]
            parts += chance.sample(parts, min(len(parts), chance.randint(0, 2)))
        taken = [receiver.accept(event) for part in parts for event in part]
        got += [event for event in taken if not isinstance(event, Verdict)]
        if receiver.ended:
            break
        if Verdict.GAP in taken or sent.ended or not parts:
            sent.rewind(receiver.position("t", 1))
    assert receiver.ended
    assert joined(got) == joined(events)
    assert log.end == receiver.text_position


@given(st.integers(1, 900))
def test_tokens_go_out_with_the_text_at_their_places(room: int) -> None:
    """However it is cut. Tokens after the text (of a stop string, for example) are never sent."""
    log, cursor = TurnLog(), Cursor()
    log.append(BlockStart(0, "text"))
    alternatives = [TopLogprob("x", -1.0)] * 3
    log.add_logprobs([TokenLogprob("x", -1.0, at, b"", alternatives) for at in (0, 3, 3, 9, 12)])
    log.add("0123456789")
    found = []
    while events := log.read(cursor, room)[0]:
        for event in events:
            if isinstance(event, Delta):
                end = event.offset + len(event.text)
                places = [token.at for token in event.logprobs or []]
                assert all(event.offset <= at < end for at in places)
                found += places
    assert found == [0, 3, 3, 9]


def call_log(arguments: str, *, complete: bool = True) -> TurnLog:
    log = TurnLog()
    log.append(BlockStart(0, "tool_use", "f", "c"))
    log.add(arguments)
    log.append(BlockStop(0, complete, len(arguments)))
    return log


def test_a_complete_call_is_dispatched_in_one_batch_with_its_stop() -> None:
    dispatch, stop = Dispatch(0, "c", "f", "{}"), BlockStop(0, True, 2)
    assert call_log("{}").read(Cursor())[0][2:] == [dispatch, stop]
    log, cursor = call_log("{}"), Cursor()
    assert log.read(cursor, 1)[0] == [BlockStart(0, "tool_use", "f", "c"), Delta(0, 0, "{")]
    assert log.read(cursor, 1)[0] == [Delta(0, 1, "}"), dispatch, stop]


def test_a_cut_call_and_one_that_no_message_could_hold_have_no_dispatch() -> None:
    for log in (call_log('{"', complete=False), call_log('"' + "x" * MAX_DISPATCH + '"')):
        receiver, events = Cursor(), log.read(Cursor())[0]
        assert [type(receiver.accept(event)) for event in events] == [BlockStart, Delta, BlockStop]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=4), st.text(max_size=4))),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=40),
)
def test_ids_come_once_and_in_order_whatever_is_lost(
    steps: list[tuple[list[int], str]], logprobs: bool, frames: list[tuple[int, bool]]
) -> None:
    """`frames`: the room of each, and whether it arrives. A gap is asked for again."""
    log, sent, received = TurnLog(), Cursor(), Cursor()
    log.append(BlockStart(0, "text"))
    for step, piece in steps:
        log.add_tokens(step, [TokenLogprob("x", -0.5, 0) for _ in step] if logprobs else None)
        log.add(piece)
    ids = [id for step, _ in steps for id in step]
    log.append(BlockStop(0, True, sum(len(piece) for _, piece in steps)))
    log.append(Finish(FinishReason.STOP, 1, Usage(output=len(ids)), None, len(ids)))
    got: list[OutputTokens] = []
    for room, arrives in [*frames, *[(200, True)] * 200]:
        gap = False
        events = log.read(sent, room)[0]
        for event in events if arrives else ():
            taken = received.accept(event)
            if isinstance(taken, OutputTokens):
                got.append(taken)
            gap = gap or taken is Verdict.GAP
        if gap or (sent.ended and not received.ended):
            sent.rewind(received.position("t", 1))
    assert received.ended
    assert [id for one in got for id in one.ids] == ids
    assert all(one.ids == ids[one.at : one.at + len(one.ids)] for one in got)
    counts = [None if one.logprobs is None else len(one.logprobs) for one in got]
    assert counts == [len(one.ids) if logprobs else None for one in got]

"""A turn's log can be read from anywhere, and a cursor takes each event once, whatever is lost or
said again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from schemas.control import StreamPosition
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import (
    MAX_DISPATCH,
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    Interrupted,
    OutputTokens,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from services.runtime.streams.turn_log import Cursor, LoggedEvent, TurnLog, Verdict, with_dispatches

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


@given(turns(), st.data())
def test_reading_in_any_steps_gives_the_turn(
    events: list[LoggedEvent], data: st.DataObject
) -> None:
    log, cursor, read = TurnLog(), Cursor(), list[LoggedEvent]()
    for event in events:
        log.append(event)
        if data.draw(st.booleans()):
            read += log.read(cursor)[0]
    read += log.read(cursor)[0]
    assert joined(read) == joined(events)
    assert log.read(cursor)[0] == []


@given(turns())
def test_a_cursor_passes_a_turn_once(events: list[LoggedEvent]) -> None:
    cursor = Cursor()
    assert [cursor.accept(event) for event in events] == events
    assert all(cursor.accept(event) is Verdict.REPEAT for event in events)


@given(turns(), st.data())
def test_a_lossy_repeating_channel_with_replay_loses_and_doubles_nothing(
    events: list[LoggedEvent], data: st.DataObject
) -> None:
    """Events are dropped, doubled and swapped at will, a call's dispatch with its stop; gaps are
    answered by a replay from the receiver's position."""
    seed = data.draw(st.integers(0, 2**32))
    chance = random.Random(seed)
    log, sent, receiver, got = TurnLog(), Cursor(), Cursor(), list[LoggedEvent]()
    for event in events:
        log.append(event)

    def deliver(batch: list[LoggedEvent]) -> bool:
        for event in batch:
            taken = receiver.accept(event)
            if taken is Verdict.GAP:
                return False
            if not isinstance(taken, Verdict):
                got.append(taken)
        return True

    for attempt in range(200):
        batch = inseparable(log.read(sent)[0])
        if attempt < 20:
            batch = [
                e for e in batch if chance.random() > 0.3 for _ in range(chance.choice((1, 1, 2)))
            ]
            if len(batch) > 1 and chance.random() < 0.3:
                i = chance.randrange(len(batch) - 1)
                batch[i], batch[i + 1] = batch[i + 1], batch[i]
        deliver([event for part in batch for event in part])
        if receiver.ended:
            break
        sent.rewind(receiver.position("t", 1))
    assert receiver.ended
    assert joined(got) == joined(events)


def test_overlap_is_cut() -> None:
    cursor = Cursor()
    cursor.accept(BlockStart(0, "text"))
    cursor.accept(Delta(0, 0, "abc"))
    assert cursor.accept(Delta(0, 1, "bcde")) == Delta(0, 3, "de")
    assert cursor.accept(Delta(0, 6, "x")) is Verdict.GAP
    assert cursor.position("t", 1) == StreamPosition("t", 1, 5, 0)


def test_a_stop_or_finish_beyond_the_cursor_is_a_gap() -> None:
    cursor = Cursor()
    cursor.accept(BlockStart(0, "text"))
    cursor.accept(Delta(0, 0, "abc"))
    assert cursor.accept(BlockStop(0, True, 5)) is Verdict.GAP
    assert cursor.accept(BlockStart(1, "text")) is Verdict.GAP
    assert cursor.accept(Finish(FinishReason.STOP, 1, Usage())) is Verdict.GAP
    assert cursor.accept(BlockStop(0, True, 3)) == BlockStop(0, True, 3)
    assert cursor.accept(Finish(FinishReason.STOP, 2, Usage())) is Verdict.GAP


def test_an_interruption_ends_the_log_and_not_the_turn() -> None:
    log, sent, cursor = TurnLog(), Cursor(), Cursor()
    for event in (BlockStart(0, "text"), Delta(0, 0, "ab")):
        log.append(event)
    lost = Interrupted("w1", b"", ErrorInfo(ErrorKind.ENGINE, "gone"))
    log.append(lost)
    taken = [cursor.accept(event) for event in log.read(sent)[0]]
    assert taken[-1] == lost
    assert not cursor.ended
    assert sent.ended
    assert cursor.accept(BlockStart(0, "text")) is Verdict.REPEAT
    assert cursor.accept(Delta(0, 0, "abcd")) == Delta(0, 2, "cd")


@given(turns(), st.integers(1, 12))
def test_a_turn_can_be_read_in_rooms_of_any_size(events: list[LoggedEvent], room: int) -> None:
    log, cursor, read = TurnLog(), Cursor(), list[LoggedEvent]()
    for event in events:
        log.append(event)
    while not cursor.ended:
        piece, left = log.read(cursor, room)
        text = sum(len(e.text) for e in piece if isinstance(e, Delta))
        assert text <= room
        assert left == max(
            room - text - sum(len(e.arguments) for e in piece if isinstance(e, Dispatch)), 0
        )
        assert piece
        read += piece
    assert joined(read) == joined(events)
    assert log.end == cursor.text_position


@given(turns(), st.data())
def test_a_replay_begins_where_the_receiver_stands_and_not_before(
    events: list[LoggedEvent], data: st.DataObject
) -> None:
    """Whatever a receiver has, it gets the rest, and of text nothing twice."""
    log, sent, receiver = TurnLog(), Cursor(), Cursor()
    for event in events:
        log.append(event)
    log.read(sent)
    for event in events[: data.draw(st.integers(0, len(events) - 1))]:
        receiver.accept(event)
    sent.rewind(receiver.position("t", 1))
    again, _ = log.read(sent)
    first = next((e for e in again if isinstance(e, Delta)), None)
    assert first is None or (first.block, first.offset) >= receiver.text_position
    assert not any(receiver.accept(event) is Verdict.GAP for event in again)
    assert receiver.ended


def test_a_negative_position_means_everything() -> None:
    log, sent = TurnLog(), Cursor()
    for event in (BlockStart(0, "text"), Delta(0, 0, "ab")):
        log.append(event)
    log.read(sent)
    sent.rewind(StreamPosition("t", 1, offset=-3, block=-1))
    assert log.read(sent)[0] == [BlockStart(0, "text"), Delta(0, 0, "ab")]


def test_reading_costs_what_is_new() -> None:
    """Reading after each of many small deltas touches each piece a bounded number of times."""
    log, cursor = TurnLog(), Cursor()
    log.append(BlockStart(0, "text"))
    total = 0
    for index in range(20_000):
        log.append(Delta(0, index, "x"))
        events, _ = log.read(cursor)
        total += sum(len(e.text) for e in events if isinstance(e, Delta))
    assert total == 20_000


def told_log(text: str, places: list[int], top: int = 0) -> TurnLog:
    log = TurnLog()
    log.append(BlockStart(0, "text"))
    alternatives = [TopLogprob("x", -1.0)] * top
    for at in sorted(places):
        log.add_logprobs([TokenLogprob(text[at : at + 1], -float(at), at, b"", alternatives)])
    log.add(text)
    log.append(BlockStop(0, True, len(text)))
    return log


@given(
    st.text(min_size=1, max_size=60),
    st.lists(st.integers(0, 70), max_size=30),
    st.integers(1, 900),
    st.integers(0, 3),
)
def test_tokens_go_out_with_the_text_at_their_places(
    text: str, places: list[int], room: int, top: int
) -> None:
    """However it is cut. Tokens after the text (of a stop string, for example) are never sent."""
    log, cursor, receiver = told_log(text, places, top), Cursor(), Cursor()
    said, got = "", []
    while True:
        events, _ = log.read(cursor, room)
        if not events:
            break
        for event in events:
            assert receiver.accept(event) == event
            if isinstance(event, Delta):
                assert event.offset == len(said)
                said += event.text
                got += [token.at for token in event.logprobs or []]
                assert all(
                    event.offset <= at < len(said)
                    for at in got[-len(event.logprobs or ()) :]
                    if event.logprobs
                )
    assert said == text
    assert got == sorted(at for at in places if at < len(text))


@given(
    st.text(min_size=1, max_size=30), st.lists(st.integers(0, 29), max_size=20), st.integers(0, 30)
)
def test_a_trimmed_delta_keeps_the_tokens_that_it_still_covers(
    text: str, places: list[int], have: int
) -> None:
    receiver = Cursor()
    receiver.accept(BlockStart(0, "text"))
    if have > 0:
        receiver.accept(Delta(0, 0, text[:have]))
    tokens = [TokenLogprob("", 0.0, at) for at in sorted(places) if at < len(text)]
    taken = receiver.accept(Delta(0, 0, text, tokens))
    if have >= len(text):
        assert taken is Verdict.REPEAT
    else:
        assert taken == Delta(0, have, text[have:], [token for token in tokens if token.at >= have])


def test_a_frame_is_not_filled_with_alternatives() -> None:
    """20 alternatives each are 2 KB a token: what a frame holds is counted with them."""
    log = told_log("x" * 100, list(range(100)), top=20)
    events, left = log.read(Cursor(), 10_000)
    (delta,) = [event for event in events if isinstance(event, Delta)]
    assert delta.logprobs is not None
    assert 4 <= len(delta.logprobs) <= 6
    assert len(delta.text) == len(delta.logprobs)
    assert left == 0


def test_turns_without_log_probabilities_report_none() -> None:
    log = told_log("abc", [])
    assert [event.logprobs for event in log.read(Cursor())[0] if isinstance(event, Delta)] == [None]


def call_log(arguments: str, *, complete: bool = True) -> TurnLog:
    log = TurnLog()
    log.append(BlockStart(0, "tool_use", "f", "c"))
    log.add(arguments)
    log.append(BlockStop(0, complete, len(arguments)))
    return log


def test_a_complete_call_is_dispatched_right_before_its_stop() -> None:
    assert call_log("{}").read(Cursor())[0][2:] == [
        Dispatch(0, "c", "f", "{}"),
        BlockStop(0, True, 2),
    ]
    assert [type(event) for event in call_log('{"', complete=False).read(Cursor())[0]] == [
        BlockStart,
        Delta,
        BlockStop,
    ]


def test_a_dispatch_is_in_one_batch_with_its_stop_however_small_the_room() -> None:
    log, cursor = call_log("{}"), Cursor()
    batches = []
    while batch := log.read(cursor, 1)[0]:
        batches.append([type(event) for event in batch])
    assert batches == [[BlockStart, Delta], [Delta, Dispatch, BlockStop]]


def test_a_receiver_that_lacks_text_of_a_call_takes_neither_its_dispatch_nor_its_stop() -> None:
    log, sent, receiver = call_log("{}"), Cursor(), Cursor()
    start, _, *end = log.read(sent)[0]
    assert [receiver.accept(event) for event in (start, *end)] == [start, Verdict.GAP, Verdict.GAP]
    sent.rewind(receiver.position("t", 1))
    again = log.read(sent)[0]
    assert [receiver.accept(event) for event in again] == [Verdict.REPEAT, *again[1:]]
    assert [receiver.accept(event) for event in end] == [Verdict.REPEAT, Verdict.REPEAT]


def test_a_call_that_no_message_could_hold_ends_without_a_dispatch() -> None:
    log, receiver = call_log('"' + "x" * MAX_DISPATCH + '"'), Cursor()
    events = log.read(Cursor())[0]
    assert [type(receiver.accept(event)) for event in events] == [BlockStart, Delta, BlockStop]


def test_dispatches_are_added_to_recorded_events() -> None:
    events = call_log("{}").read(Cursor())[0]
    recorded = [event for event in events if not isinstance(event, Dispatch)]
    assert list(with_dispatches(recorded, TurnLog())) == events
    assert list(with_dispatches(events, TurnLog())) == events


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 99), max_size=4), st.text(min_size=1, max_size=4)),
        max_size=8,
    ),
    st.booleans(),
    st.data(),
)
def test_ids_come_once_and_in_order_whatever_is_lost(
    steps: list[tuple[list[int], str]], logprobs: bool, data: st.DataObject
) -> None:
    """Frames are lost and asked for again."""
    log, sent, received = TurnLog(), Cursor(), Cursor()
    ids: list[int] = []
    texts: list[str] = []
    log.append(BlockStart(0, "text"))
    got: list[OutputTokens] = []
    text = ""

    def deliver() -> None:
        nonlocal text
        room = data.draw(st.integers(1, 200))
        events, _ = log.read(sent, room)
        for event in events if data.draw(st.booleans()) else ():
            taken = received.accept(event)
            if taken is Verdict.GAP:
                sent.rewind(received.position("t", 1))
                return
            if isinstance(taken, OutputTokens):
                got.append(taken)
            elif isinstance(taken, Delta):
                text += taken.text

    for step, piece in steps:
        log.add_tokens(step, [TokenLogprob("x", -0.5, 0) for _ in step] if logprobs else None)
        ids += step
        log.add(piece)
        texts.append(piece)
        deliver()
    log.append(BlockStop(0, True, len("".join(texts))))
    log.append(Finish(FinishReason.STOP, 1, Usage(output=len(ids)), None, len(ids)))
    for _ in range(1000):
        if received.ended:
            break
        deliver()
        if not received.ended and sent.ended:
            sent.rewind(received.position("t", 1))
    else:
        return  # the channel lost everything
    assert [token for one in got for token in one.ids] == ids
    assert [one.at for one in got] == [
        sum(len(each.ids) for each in got[:n]) for n in range(len(got))
    ]
    assert text == "".join(texts)
    assert all((one.logprobs is not None) == logprobs for one in got)
    assert all(one.logprobs is None or len(one.logprobs) == len(one.ids) for one in got)


def test_a_finish_without_all_ids_is_a_gap() -> None:
    cursor = Cursor()
    assert cursor.accept(OutputTokens(1, [5])) is Verdict.GAP
    assert cursor.accept(Finish(FinishReason.STOP, 0, Usage(), None, 1)) is Verdict.GAP
    assert cursor.accept(OutputTokens(0, [4])) == OutputTokens(0, [4])
    assert cursor.accept(OutputTokens(0, [4])) is Verdict.REPEAT
    assert cursor.accept(OutputTokens(0, [4, 5])) == OutputTokens(1, [5])
    assert isinstance(cursor.accept(Finish(FinishReason.STOP, 0, Usage(), None, 2)), Finish)

"""A cursor takes each event once, and only the new part of one that overlaps; it reports gaps."""

from schemas.control import StreamPosition
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    FinishReason,
    Interrupted,
    TokenLogprob,
    Usage,
)
from services.runtime.streams.cursor import Cursor, Verdict
from services.runtime.streams.turn_log import TurnLog


def test_overlap_is_cut_and_a_gap_is_reported() -> None:
    cursor = Cursor()
    cursor.accept(BlockStart(0, "text"))
    cursor.accept(Delta(0, 0, "abc"))
    assert cursor.accept(Delta(0, 1, "bcde")) == Delta(0, 3, "de")
    tokens = [TokenLogprob("", 0.0, at) for at in (0, 4, 5)]
    assert cursor.accept(Delta(0, 0, "abcdef", tokens)) == Delta(0, 5, "f", tokens[2:])
    assert cursor.accept(Delta(0, 0, "abcdef", tokens)) is Verdict.REPEAT
    assert cursor.accept(Delta(0, 7, "x")) is Verdict.GAP
    assert cursor.position("t", 1) == StreamPosition("t", 1, 6, 0)
    assert cursor.accept(BlockStop(0, True, 6)) == BlockStop(0, True, 6)
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

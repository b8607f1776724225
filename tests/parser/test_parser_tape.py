from parser_cases import drive

from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.parser.shapes import Markers, Shape
from services.parser.tape import Blocks, Tape


def test_what_was_passed_over_is_gone() -> None:
    tape = Tape("abc")
    tape.position = 2
    tape.extend("de")
    assert (tape.text, tape.position, tape.rest()) == ("cde", 0, "cde")
    tape.position = 3
    tape.extend("f")
    assert tape.text == "f"


def test_kept_text_outlives_it() -> None:
    tape = Tape("abcd")
    tape.position = 1
    tape.keep()
    for piece in ("ef", "gh"):
        tape.position += 2
        tape.extend(piece)
    tape.position = 1
    assert tape.release() == "bcdef"


def test_stopped_only_by_the_model_itself() -> None:
    tape = Tape()
    assert not tape.stopped
    tape.final = True
    assert tape.stopped
    tape.reason = FinishReason.STOP_STRING
    assert not tape.stopped


def test_blanks_are_passed_over_as_they_come() -> None:
    tape = Tape()
    assert drive(tape.blanks(), tape, [" \n", "", "\t", " x"]) == " \n\t "
    assert tape.rest() == "x"
    tape = Tape()
    assert drive(tape.blanks(), tape, ["  "]) == "  "


def test_peek_waits_and_takes_nothing() -> None:
    tape = Tape()
    assert drive(tape.peek(3), tape, ["a", "b", "cd"]) == "abc"
    assert tape.rest() == "abcd"
    tape = Tape("a")
    assert drive(tape.peek(3), tape, []) == "a"


def test_match_takes_the_first_that_stands_here() -> None:
    shapes = Shape("<a>{ws}<b>"), Shape("<a>")
    tape = Tape()
    found = drive(tape.match(*shapes), tape, ["<", "a>", " ", "<c>"])
    assert found is not None
    assert (found[0], tape.rest()) == (1, " <c>")
    tape = Tape("x")
    assert drive(tape.match(*shapes), tape, []) is None


def test_seek_stops_in_front_of_a_marker() -> None:
    markers = Markers([(Shape("<a>", then=("!",)), "a")])
    tape = Tape()
    found = drive(tape.seek(markers), tape, ["noise <", "a> ? <a", "> !"])
    assert found is not None
    assert found.means == "a"
    assert tape.rest() == "<a> !"


def test_seek_leaves_a_marker_that_is_cut_off() -> None:
    tape = Tape()
    assert drive(tape.seek(Markers([(Shape("<a>"), "a")])), tape, ["noise <a"]) is None
    assert tape.rest() == "<a"


def test_what_is_said_between_two_drains_is_one_delta() -> None:
    blocks = Blocks()
    blocks.open("text")
    blocks.say("a")
    blocks.say("")
    blocks.say("b")
    assert blocks.drain() == [BlockStart(0, "text"), Delta(0, 0, "ab")]
    blocks.say("c")
    blocks.open("tool_use", "f", "id")
    blocks.close(False)
    assert blocks.drain() == [
        Delta(0, 2, "c"),
        BlockStop(0, True, 3),
        BlockStart(1, "tool_use", "f", "id"),
        BlockStop(1, False, 0),
    ]
    assert blocks.drain() == []

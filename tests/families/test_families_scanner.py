from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.families.grammar.scanner import BlockWriter, Scanner
from services.families.grammar.shapes import Markers, Shape
from tests.kit.parser_cases import drive


def test_passed_text_is_discarded() -> None:
    scanner = Scanner("abc")
    scanner.position = 2
    scanner.extend("de")
    assert (scanner.text, scanner.position, scanner.rest()) == ("cde", 0, "cde")
    scanner.position = 3
    scanner.extend("f")
    assert scanner.text == "f"


def test_recorded_text_outlives_later_input() -> None:
    scanner = Scanner("abcd")
    scanner.position = 1
    scanner.start_recording()
    for piece in ("ef", "gh"):
        scanner.position += 2
        scanner.extend(piece)
    scanner.position = 1
    assert scanner.stop_recording() == "bcdef"


def test_scanner_is_stopped_only_by_the_model() -> None:
    scanner = Scanner()
    assert not scanner.stopped
    scanner.final = True
    assert scanner.stopped
    scanner.reason = FinishReason.STOP_STRING
    assert not scanner.stopped


def test_blanks_are_passed_over_as_they_come() -> None:
    scanner = Scanner()
    assert drive(scanner.blanks(), scanner, [" \n", "", "\t", " x"]) == " \n\t "
    assert scanner.rest() == "x"
    scanner = Scanner()
    assert drive(scanner.blanks(), scanner, ["  "]) == "  "


def test_peek_waits_and_consumes_nothing() -> None:
    scanner = Scanner()
    assert drive(scanner.peek(3), scanner, ["a", "b", "cd"]) == "abc"
    assert scanner.rest() == "abcd"
    scanner = Scanner("a")
    assert drive(scanner.peek(3), scanner, []) == "a"


def test_match_takes_the_first_shape_that_matches() -> None:
    shapes = Shape("<a>{ws}<b>"), Shape("<a>")
    scanner = Scanner()
    found = drive(scanner.match(*shapes), scanner, ["<", "a>", " ", "<c>"])
    assert found is not None
    assert (found[0], scanner.rest()) == (1, " <c>")
    scanner = Scanner("x")
    assert drive(scanner.match(*shapes), scanner, []) is None


def test_seek_stops_in_front_of_a_marker() -> None:
    markers = Markers([(Shape("<a>", then=("!",)), "a")])
    scanner = Scanner()
    found = drive(scanner.seek(markers), scanner, ["noise <", "a> ? <a", "> !"])
    assert found is not None
    assert found.meaning == "a"
    assert scanner.rest() == "<a> !"


def test_seek_leaves_a_marker_that_is_cut_off() -> None:
    scanner = Scanner()
    assert drive(scanner.seek(Markers([(Shape("<a>"), "a")])), scanner, ["noise <a"]) is None
    assert scanner.rest() == "<a"


def test_text_between_two_drains_is_one_delta() -> None:
    blocks = BlockWriter()
    blocks.open("text")
    blocks.write("a")
    blocks.write("")
    blocks.write("b")
    assert blocks.drain() == [BlockStart(0, "text"), Delta(0, 0, "ab")]
    blocks.write("c")
    blocks.open("tool_use", "f", "id")
    blocks.close(False)
    assert blocks.drain() == [
        Delta(0, 2, "c"),
        BlockStop(0, True, 3),
        BlockStart(1, "tool_use", "f", "id"),
        BlockStop(1, False, 0),
    ]
    assert blocks.drain() == []

"""The scanner waits for text that may still become something else; the writer joins deltas."""

from services.families.grammar.scanner import Scanner
from services.families.grammar.shapes import Markers, Shape
from tests.kit.parser_cases import drive


def test_passed_text_is_discarded_unless_it_is_recorded() -> None:
    scanner = Scanner("abc")
    scanner.position = 2
    scanner.extend("de")
    assert (scanner.text, scanner.position, scanner.rest()) == ("cde", 0, "cde")
    scanner.position = 1
    scanner.start_recording()
    for piece in ("fg", "hi"):
        scanner.position += 2
        scanner.extend(piece)
    scanner.position = 1
    assert scanner.stop_recording() == "defgh"


def test_seek_stops_in_front_of_a_marker_whole_or_cut_off() -> None:
    markers = Markers([(Shape("<a>", then=("!",)), "a")])
    scanner = Scanner()
    found = drive(scanner.seek(markers), scanner, ["noise <", "a> ? <a", "> !"])
    assert found is not None
    assert (found.meaning, scanner.rest()) == ("a", "<a> !")
    scanner = Scanner()
    assert drive(scanner.seek(Markers([(Shape("<a>"), "a")])), scanner, ["noise <a"]) is None
    assert scanner.rest() == "<a"

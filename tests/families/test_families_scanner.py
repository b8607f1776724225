"""The scanner of a turn's input."""

from services.families.grammar.scanner import Scanner
from services.families.grammar.shapes import Markers, Shape
from tests.kit.parser_cases import drive


def test_seek_stops_in_front_of_a_marker_whole_or_cut_off() -> None:
    markers = Markers([(Shape("<a>", then=("!",)), "a")])
    scanner = Scanner()
    found = drive(scanner.seek(markers), scanner, ["noise <", "a> ? <a", "> !"])
    assert found is not None
    assert (found.meaning, scanner.rest()) == ("a", "<a> !")
    scanner = Scanner()
    assert drive(scanner.seek(Markers([(Shape("<a>"), "a")])), scanner, ["noise <a"]) is None
    assert scanner.rest() == "<a"

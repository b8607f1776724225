"""Stop strings are found wherever the text is cut, and nothing is held longer than needed."""

import tracemalloc

from services.parser.stop_strings import StopStrings
from tests.kit.examples import chances

ALPHABET = "abX<>"


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The string that is whole first, the longest of several."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def test_any_chunking_finds_the_first_stop() -> None:
    for chance in chances("stop", 300):
        text = "".join(chance.choices(ALPHABET, k=chance.randint(0, 40)))
        lengths = chance.choices((1, 2, 2, 3, 4), k=chance.randint(1, 3))
        stops = ["".join(chance.choices(ALPHABET, k=length)) for length in lengths]
        matcher, shown, hit, at = StopStrings(stops), "", None, 0
        while at < len(text) and hit is None:
            size = chance.randint(1, 5)
            piece, hit = matcher.feed(text[at : at + size])
            shown += piece
            at += size
            held = text[len(shown) : at]
            assert hit is not None or not held or any(stop.startswith(held) for stop in stops)
        if hit is None:
            shown += matcher.flush()
        assert (shown, hit) == reference(text, stops), (text, stops)


def test_a_long_stop_string_takes_no_memory_to_speak_of() -> None:
    """All prefixes of this one would be 200 MB."""
    long = "x" * 20_000
    tracemalloc.start()
    matcher = StopStrings([long])
    assert matcher.feed("axxx") == ("a", None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000

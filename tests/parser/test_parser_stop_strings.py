"""Stop strings are found wherever the text is cut, and nothing is held longer than needed."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from services.parser.stop_strings import StopStrings

ALPHABET = "abX<>"


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The string that is whole first, the longest of several."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


@given(
    st.text(ALPHABET, max_size=40),
    st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_any_chunking_finds_the_first_stop(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher, shown, hit, at = StopStrings(stops), "", None, 0
    while at < len(text) and hit is None:
        size = data.draw(st.integers(1, 5))
        piece, hit = matcher.feed(text[at : at + size])
        shown += piece
        at += size
        held = text[len(shown) : at]
        assert hit is not None or not held or any(stop.startswith(held) for stop in stops)
    if hit is None:
        shown += matcher.flush()
    assert (shown, hit) == reference(text, stops)


def test_plain_text_is_released_at_once() -> None:
    matcher = StopStrings(["</done>"])
    assert matcher.feed("hello ") == ("hello ", None)
    assert matcher.feed("a <") == ("a ", None)
    assert matcher.feed("b") == ("<b", None)


def test_a_long_stop_string_takes_no_memory_to_speak_of() -> None:
    """All prefixes of this one would be 200 MB."""
    long = "x" * 20_000
    tracemalloc.start()
    matcher = StopStrings([long])
    assert matcher.feed("axxx") == ("a", None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000

"""Stop strings: found where one ends first, in every split of the text, and nothing else is held
back.

Layout: number of strings, seed of the cuts; then the strings and the text, separated by NUL.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

from services.parser.stop_strings import StopStrings

_PIECES: Final = (*"aaabbc\n<船 ", "ab", "aab", "abc", "STOP", "\n\n", "</", "</done>", "x" * 40)
_SEEDS: Final = (
    (["STOP"], "one STOP two"),
    (["</done>", "\n\n"], "a </b> c\n\nd </done>"),
    (["aab", "ab", "b"], "aaab"),
    (["Observation:"], "Observe Observation: it"),
    (["abca", "aac"], "aabcaac"),
    (["abc", "b"], "abc"),
    (["</", "</done>"], "x</done>"),
)


def one(data: bytes) -> None:
    """Raises AssertionError where the result differs from the reference."""
    head = data[:2].ljust(2, b"\0")
    words = data[2:].decode("utf-8", "replace").split("\0")
    count = 1 + head[0] % 4
    stops = [word for word in words[:count] if word] or ["\n\n"]
    text = "".join(words[count:])
    want = reference(text, stops)
    for pieces in ([text], list(text), list(_cuts(text, Random(head[1])))):
        found = _run(stops, pieces)
        assert found == want, f"{found}, not {want}, of {pieces} with {stops}"


def reference(text: str, stops: Iterable[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends first (the longest of those that end there), and
    that string."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def _run(stops: list[str], pieces: Iterable[str]) -> tuple[str, str | None]:
    matcher, shown, fed = StopStrings(stops), "", ""
    for piece in pieces:
        fed += piece
        text, hit = matcher.feed(piece)
        shown += text
        if hit is not None:
            return shown, hit
        held = fed[len(shown) :]
        assert fed == shown + held
        begins = any(stop.startswith(held) for stop in stops)
        assert not held or begins, f"{held!r} is held back, with {stops}"
    return shown + matcher.flush(), None


def _cuts(text: str, chance: Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = chance.randint(1, 5)
        yield text[at : at + size]
        at += size


def mutate(data: bytes, chance: Random) -> bytes:
    """Other strings and text, near `data`."""
    head, text = data[:2].ljust(2, b"\0"), data[2:].decode("utf-8", "replace")
    for _ in range(chance.choice((1, 2, 4))):
        at = chance.randrange(len(text) + 1)
        piece = chance.choice((*_PIECES, "\0", text[: chance.randrange(8)]))
        text = text[:at] + piece + text[at + chance.choice((0, 0, 1, 3)) :]
    return head + text.encode("utf-8", "replace")


def seeds() -> Iterator[tuple[str, bytes]]:
    """A few examples."""
    for number, (stops, text) in enumerate(_SEEDS):
        yield str(number), bytes([len(stops) - 1, number]) + "\0".join([*stops, text]).encode()

"""Lists the tokens with which a model may write a set of markers, however it splits them. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

OTHER = "\0"
"""Stands for text outside markers."""
_BLANKS = " \t\r\n"
_ENDS_SIGN = re.compile(r"[^A-Za-z0-9]*[][(){}<>/=|*_`'\".!?:]\s*")
"""Signs before which a marker may be mentioned, or after which a sentence begins."""


def marker_tokens(
    markers: Iterable[str], texts: Sequence[str], added: Mapping[str, int]
) -> dict[str, list[int]]:
    """Maps the text that matters in a token to the tokens with that text.

    `texts`: the text of each id. `added`: the tokenizer's added tokens, at which it splits a text
    first. A marker is found in the concatenation of these texts where the model wrote it. They are
    shortened: to the piece of a marker at a token's start or end, a blank for blanks, and `OTHER`
    for the rest, with the last sign of a token of signs. An id without an entry is `OTHER`.
    """
    split = re.compile(_any(added))
    found: dict[str, list[int]] = {}
    inside, starts, ends = set[str](), set[str](), set[str]()
    for marker in markers:
        found |= {token: [added[token]] for token in split.findall(marker)}
        pieces = split.split(marker)
        inside.update(
            piece[a:b]
            for piece in pieces
            for a in range(len(piece))
            for b in range(a + 1, len(piece) + 1)
        )
        starts.update(pieces[0][:n] for n in range(1, len(pieces[0]) + 1))
        ends.update(pieces[-1][n:] for n in range(len(pieces[-1])))
    first, last = re.compile(_any(ends)), re.compile(f"(?:{_any(starts)})\\Z")
    ids = set(added.values())
    for token, text in enumerate(texts):
        if text and token not in ids:
            begins, finishes = first.match(text), last.search(text)
            a, b = begins.end() if begins else 0, finishes.start() if finishes else len(text)
            part = text if text in inside or a > b else text[:a] + _shortened(text[a:b]) + text[b:]
            if part != OTHER:
                found.setdefault(part, []).append(token)
    return found


def _any(texts: Iterable[str]) -> str:
    """A pattern of the longest of these texts; of nothing where there are none."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)"


def _shortened(text: str) -> str:
    bare = text.rstrip(_BLANKS)
    blanks = text[len(bare) :]
    sign = bare[-1:] if _ENDS_SIGN.fullmatch(text) else ""
    return (OTHER if bare else "") + sign + ("\n" if "\n" in blanks else " " if blanks else "")

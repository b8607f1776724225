"""Lists the tokens with which a model may write a set of markers, however it splits them. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

OTHER = "\0"
"""Stands for text outside markers."""
_BLANKS = " \t\r\n"


def marker_tokens(
    markers: Iterable[str], texts: Sequence[str], added: Mapping[str, int], signs: Iterable[str]
) -> dict[str, list[int]]:
    """Maps the text that matters in a token to the tokens with that text.

    `texts`: the text of each id. `added`: the tokenizer's added tokens, at which it splits a text
    first. `signs`: texts that matter before a marker. A marker is found in the concatenation of
    these texts where the model wrote it. They are shortened: to the piece of a marker at a token's
    start or end, and `OTHER` for the rest, with the sign at the end of a token without ASCII
    letters and digits. Of blanks, one blank stays, a line break stands for all with a line break,
    and a tab for others. An id without an entry is `OTHER`.
    """
    split = re.compile(_any(added))
    tokens: dict[str, list[int]] = {}
    inside: set[str] = set()
    starts: set[str] = set()
    ends: set[str] = set()
    for marker in markers:
        tokens |= {token: [added[token]] for token in split.findall(marker)}
        pieces = split.split(marker)
        for piece in pieces:
            inside.update(_substrings(piece))
        starts.update(_beginnings(pieces[0]))
        ends.update(_ends(pieces[-1]))

    end_of_marker = re.compile(_any(ends))
    start_of_marker = re.compile(f"(?:{_any(starts)})\\Z")
    ends_with_sign = re.compile(f"[^A-Za-z0-9]*({_any(signs)})")
    ids = set(added.values())
    for token, text in enumerate(texts):
        if not text or token in ids:
            continue
        part = text
        if text not in inside:
            part = _without_middle(text, end_of_marker, start_of_marker, ends_with_sign)
        if part != OTHER:
            tokens.setdefault(part, []).append(token)
    return tokens


def _without_middle(
    text: str,
    end_of_marker: re.Pattern[str],
    start_of_marker: re.Pattern[str],
    ends_with_sign: re.Pattern[str],
) -> str:
    """A token's text, shortened between the end of a marker at its start and the start of one at
    its end."""
    start = 0
    end = len(text)
    ending = end_of_marker.match(text)
    if ending is not None:
        start = ending.end()
    beginning = start_of_marker.search(text)
    if beginning is not None:
        end = beginning.start()
    if start > end:
        return text
    return text[:start] + _shortened(text[start:end], ends_with_sign) + text[end:]


def _substrings(text: str) -> Iterator[str]:
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            yield text[start:end]


def _beginnings(text: str) -> Iterator[str]:
    return (text[:size] for size in range(1, len(text) + 1))


def _ends(text: str) -> Iterator[str]:
    return (text[start:] for start in range(len(text)))


def _any(texts: Iterable[str]) -> str:
    """A pattern of the longest of these texts; of nothing where there are none."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)"


def _shortened(text: str, ends_with_sign: re.Pattern[str]) -> str:
    bare = text.rstrip(_BLANKS)
    blanks = text[len(bare) :]
    short = OTHER if bare else ""
    sign = ends_with_sign.fullmatch(bare)
    if sign is not None:
        short += sign[1]
    if "\n" in blanks:
        short += "\n"
    elif blanks:
        short += " " if blanks == " " else "\t"
    return short

"""`Shape`, the notation for markers, and `Markers`, a set of shapes with meanings.

A shape is literal text with holes, `<tool_call>{ws}<function={name}>`, and optionally `then`: what
must follow (after blanks) for it to count. At a position of the input the result is a match, `MORE`
(it could match with more input) or None. A match and None are final: they never change with more
input, so the parser's result does not depend on how the stream was split. Every hole is bounded,
and so is the text that a shape can hold back.

Holes: `{ws}` blanks · `{name}` a tool's name · `{key}` a parameter's name · `{plain_name}` and
`{plain_key}` the same of the characters of a `{word}` · `{bare}` one without quotes · `{words}` one
with blanks · `{id}` and `{junk}` anything up to the next `<` (`{junk}` may be empty) · `{word}` a
word · `{tag}` the name of any tag · `{bool}` true or false · `{q}` an optional quote · `{suffix}`
text that a tokenizer may add to a marker's name, after `:`, `_` or `-` · `{header}` words and
markers of a message's header, before its recipient and body. Any other brace is literal.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, product
from operator import attrgetter
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

BLANKS: Final = " \t\r\n"
END: Final = ""
"""In `then`: the end of the input may follow as well."""
MAX_STRAYS: Final = 3
"""Closing tags that a format does not have, before its own."""


class More(enum.Enum):
    """The result of a shape that could match with more input."""

    MORE = "more"


MORE: Final = More.MORE
ShapeResult: TypeAlias = re.Match[str] | Literal[More.MORE] | None


class _Hole(NamedTuple):
    chars: str
    least: int
    most: int
    captured: bool = True
    group: str = ""
    """The name of what is captured, if that is not the hole's."""


_HOLES: Final = {
    "ws": _Hole(r"[ \t\r\n]", 0, 64, captured=False),
    "name": _Hole(r"""[^\s<>"'`(){}\[\],;=|]""", 1, 256),
    "plain_name": _Hole(r"[\w.-]", 1, 256, group="name"),
    "plain_key": _Hole(r"[\w.-]", 1, 256, group="key"),
    "key": _Hole(r"""[^<>"'\r\n]""", 1, 256),
    "bare": _Hole(r"""[^\s:=,{}\[\]<>"']""", 1, 256),
    "words": _Hole(r"""[^:=,{}\[\]<>"'\r\n]""", 1, 256),
    "id": _Hole(r"[^<]", 1, 256),
    "junk": _Hole(r"[^<]", 0, 256, captured=False),
    "word": _Hole(r"[\w.-]", 1, 64),
    "bool": _Hole(r"[truefalsTRUEFALS]", 4, 5),
    "q": _Hole(r"""["']""", 0, 1, captured=False),
    "tag": _Hole(r"[\w.:-]", 1, 64, captured=False),
    "suffix": _Hole(r"(?:[:_-]\w{0,32})", 0, 2, captured=False),
    "header": _Hole(
        r"""(?:(?!to=)[^<>,;`"'(){}\[\]]|<(?!\|(?:message|start|end|call|return|eom|eot)\|>)|(?<=\|)>)""",
        0,
        64,
        captured=False,
    ),
}
HOLE: Final = re.compile(rf"\{{({'|'.join(_HOLES)})\}}")
"""Matches the notation of a hole, with its name."""


class Shape:
    """The form of one marker.

    `text` is the notation. `then`: one of these literals must follow after blanks; `END` among them
    admits the end of the input. `line_start`: only blanks may precede the marker on its line.
    `marker` is the unmistakable part of the shape, by default its beginning up to the first `>`.
    """

    def __init__(
        self,
        text: str,
        then: Sequence[str] = (),
        *,
        line_start: bool = False,
        marker: str | None = None,
    ) -> None:
        self.text = text
        self.then = tuple(then)
        self.line_start = line_start
        self._pieces = HOLE.split(text)
        self.head = self._pieces[0]
        """The literal text at the start of the shape; a shape in `Markers` must have some."""
        self._unmistakable = marker or self.head[: self.head.find(">") + 1] or self.head

    def __repr__(self) -> str:
        return f"Shape({self.text!r})"

    def at(self, text: str, position: int, final: bool) -> ShapeResult:
        """The result at `position`; `final`: no more input will come."""
        if not text.startswith(self.head, position):  # most shapes are never compiled
            if not final and self._ends_in_head(text, position):
                return MORE
            return None
        if final:
            return self._final.match(text, position)
        match = self._full.match(text, position)
        if match is None and self._partial.match(text, position):
            return MORE
        return match

    def cut(self, text: str, position: int) -> tuple[bool, bool] | None:
        """If the input ends inside this shape: whether its marker is there, and whether more than
        blanks follows it."""
        if position == len(text):
            return None
        if not text.startswith(self.head, position):
            if not self._ends_in_head(text, position):
                return None
        elif not self._partial.match(text, position):
            return None
        marker = self._marker.match(text, position)
        if marker is None:
            return False, False
        return True, bool(text[marker.end() :].strip(BLANKS))

    def _ends_in_head(self, text: str, position: int) -> bool:
        return len(text) - position < len(self.head) and self.head.startswith(text[position:])

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Literal texts with which the shape begins: its head, with the first character of what
        must follow that, after blanks. They tell a marker from a mention of it. Just the head where
        anything may follow."""
        follow = self.then
        if len(self._pieces) > 1:
            follow = ()
            if self._pieces[1] == "ws":
                follow = (self._pieces[2],)
        first = dict.fromkeys(text[0] for text in follow if text)
        ends = [blank + char for char, blank in product(first, ("", "\n", " "))] or [""]
        return tuple(self.head + end for end in ends)

    @property
    def pattern(self) -> str:
        """The shape as a regular expression, without what must follow."""
        return _pattern(self._pieces)

    @cached_property
    def _full(self) -> re.Pattern[str]:
        return re.compile(self.pattern + self._follow())

    @cached_property
    def _final(self) -> re.Pattern[str]:
        if END not in self.then:
            return self._full
        return re.compile(self.pattern + self._follow(r"\Z"))

    def _follow(self, *end: str) -> str:
        if not self.then:
            return ""
        texts = [*(re.escape(text) for text in self.then if text), *end]
        return rf"(?=[ \t\r\n]{{0,64}}(?:{'|'.join(texts) or '(?!)'}))"

    @cached_property
    def _partial(self) -> re.Pattern[str]:
        return re.compile(_partial(self._pieces, self.then))

    @cached_property
    def _marker(self) -> re.Pattern[str]:
        return re.compile(_pattern(HOLE.split(self._unmistakable)))


def _pattern(pieces: Sequence[str]) -> str:
    parts: list[str] = []
    quotes = 0
    for index, piece in enumerate(pieces):
        if piece == "q" and index % 2:
            parts.append(_quote(quotes))
            quotes += 1
        else:
            parts.append(_hole(piece) if index % 2 else re.escape(piece))
    return "".join(parts)


def _quote(number: int) -> str:
    """The pattern of a shape's optional quotes by their number: each second one is as the one
    before it."""
    if number % 2:
        return f"(?P=q{number - 1})"
    return f"(?P<q{number}>[\"']?+)"


def _hole(name: str) -> str:
    hole = _HOLES[name]
    body = f"{hole.chars}{{{hole.least},{hole.most}}}+"
    if not hole.captured:
        return body
    return f"(?P<{hole.group or name}>{body})"


def _prefixes(text: str) -> list[str]:
    return [re.escape(text[:n]) for n in range(len(text) - 1, -1, -1)]


def _partial(pieces: Sequence[str], then: Sequence[str]) -> str:
    """A pattern for input that ends in the middle of the shape."""
    rest = r"(?!)"
    if then:
        heads = dict.fromkeys(chain.from_iterable(("", *_prefixes(text)) for text in then))
        rest = rf"[ \t\r\n]{{0,64}}+(?:{'|'.join(sorted(heads, key=len, reverse=True))})\Z"
    for i in range(len(pieces) - 1, -1, -1):
        piece = pieces[i]
        if i % 2:
            rest = _partial_hole(_HOLES[piece], rest)
        elif piece:
            rest = rf"(?:{re.escape(piece)}{rest}|(?:{'|'.join(_prefixes(piece))})\Z)"
    return rest


def _partial_hole(hole: _Hole, rest: str) -> str:
    """A pattern for input that ends in a hole, or in the `rest` after it."""
    # A hole with a look-ahead may take the beginning of the text after it.
    again = "+"
    if "(?!" in hole.chars:
        again = ""
    cut = rf"{hole.chars}{{0,{hole.most}}}+\Z"
    whole = rf"{hole.chars}{{{hole.least},{hole.most}}}{again}{rest}"
    return f"(?:{cut}|{whole})"


T = TypeVar("T")


def with_meaning(
    meaning: T, texts: Iterable[str], then: Sequence[str] = ()
) -> list[tuple[Shape, T]]:
    """The shapes of `texts`, which all have one meaning, for `Markers`."""
    return [(Shape(text, then), meaning) for text in texts]


def closing_shapes(closers: Sequence[str]) -> tuple[Shape, ...]:
    """The shapes of `closers`, each also after tags that close what the format does not have."""
    strays = ("</{tag}>{ws}" * count for count in range(MAX_STRAYS + 1))
    return tuple(map(Shape, map("".join, product(strays, closers))))


class MarkerMatch(NamedTuple, Generic[T]):
    """A marker that was found, and its meaning."""

    meaning: T
    match: re.Match[str]


class MarkerCut(NamedTuple, Generic[T]):
    """The input ended inside a marker."""

    meaning: T
    marked: bool
    """Its unmistakable part is complete."""
    more: bool
    """Something follows that part."""


class Markers(Generic[T]):
    """A set of shapes, each with a meaning; the first one that matches at a place wins.

    `trigger` checks quickly and conservatively whether a piece of text may contain (the start of) a
    marker or ends in a line break and blanks; None means that all of the text is plain.
    """

    __slots__ = ("_first", "_heads", "_prefixes", "_reach", "_shapes", "trigger")

    def __init__(self, shapes: Iterable[tuple[Shape, T]]) -> None:
        self._shapes = tuple(shapes)
        if not all(shape.head for shape, _ in self._shapes):
            raise ValueError(f"a marker starts with literal text: {self._shapes}")
        heads = dict.fromkeys(shape.head for shape, _ in self._shapes)
        first = "".join(sorted({re.escape(h[0]) for h in heads}))
        some_first = r"(?!)"
        if first:
            some_first = f"[{first}]"
        self._first = re.compile(some_first)
        self._heads = re.compile("|".join(re.escape(h) for h in heads) or r"(?!)")
        self._prefixes = frozenset(chain.from_iterable(accumulate(h[:-1]) for h in heads))
        self._reach = max((len(h) for h in heads), default=1) - 1
        ending = r"[\r\n][ \t]*+\Z"
        self.trigger = re.compile(f"{some_first}|{ending}").search

    def find(self, text: str, position: int, final: bool) -> int:
        """The position of the first head, which may be a partial one at the end of the text; -1 if
        there is none."""
        match = self._heads.search(text, position)
        end = len(text)
        if match is not None:
            end = match.start()
        if not final:  # a partial head may have another one in it
            for start in self._first.finditer(text, max(position, len(text) - self._reach), end):
                if text[start.start() :] in self._prefixes:
                    return start.start()
        return -1 if match is None else end

    def at(
        self, text: str, position: int, final: bool, line_start: bool = True
    ) -> MarkerMatch[T] | MarkerCut[T] | More | None:
        """The marker at `position`; `line_start`: only blanks precede it on its line."""
        for shape, meaning in self._shapes:
            if shape.line_start and not line_start:
                continue
            answer = shape.at(text, position, final)
            if answer is MORE:
                return MORE
            if answer is not None:
                return MarkerMatch(meaning, answer)
        return self._cut(text, position, line_start) if final else None

    def names(self, text: str, position: int, line_start: bool = True) -> bool:
        """Whether a marker's head is at `position`."""
        return self._heads.match(text, position) is not None and any(
            text.startswith(shape.head, position) and (line_start or not shape.line_start)
            for shape, _ in self._shapes
        )

    def _cut(self, text: str, position: int, line_start: bool) -> MarkerCut[T] | None:
        cuts: list[MarkerCut[T]] = []
        for shape, meaning in self._shapes:
            if line_start or not shape.line_start:
                cut = shape.cut(text, position)
                if cut is not None:
                    cuts.append(MarkerCut(meaning, *cut))
        return max(cuts, key=attrgetter("marked", "more"), default=None)

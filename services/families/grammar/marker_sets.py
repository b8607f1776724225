"""The markers of families that mark reasoning and calls inside running text, and which of them
count in each state of a turn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from re import compile
from typing import Final, TypeAlias

from services.families.grammar.call_marker import CallMarker
from services.families.grammar.shapes import END, MAX_STRAYS, Markers, Shape, with_meaning

_BLANK: Final = compile(r"\{(?:ws|junk)\}")
_FREE: Final = compile(r"\{(?:ws|junk|suffix)\}")


class MarkerKind(Enum):
    """The meaning of a marker that does not open a call."""

    REASONING_START = "opens reasoning"
    REASONING_END = "closes reasoning"
    FRAME_START = "opens a text that has markers of its own"
    FRAME_END = "closes it"
    REPEATED_REASONING_START = "opens reasoning that is open"
    EMPTY_SECTION = "a section without calls"
    STRAY_CLOSER = "closes what is not open"
    STRAY_CLOSER_LINE = "the same, on a line of its own"
    INLINE_REASONING_START = "opens reasoning inside of a text, or inside of reasoning"
    STRAY_REASONING_END = "closes reasoning that is not open"
    TAIL = "closes what contains the call"
    STOP = "ends the turn"
    NOISE = "has no meaning here"
    STRAY_TOKEN = "belongs to a call that cannot be read"


TagPairs: TypeAlias = tuple[tuple[str, str], ...]
"""Openers with their closers."""
Meaning: TypeAlias = "MarkerKind | CallMarker"
_Meanings: TypeAlias = Sequence[tuple[Shape, Meaning]]


@dataclass(frozen=True, kw_only=True)
class MarkupMarkers:
    """The markers of a grammar.

    `think` are the pairs of markers around reasoning; `tails` close calls and sections, and are
    passed over after a call, as are `joints` between calls; `frames` are markers around text;
    `stops` are the model's stop tokens, dropped if nothing follows them.
    """

    think: TagPairs = ()
    calls: tuple[CallMarker, ...] = ()
    tails: tuple[str, ...] = ()
    joints: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    frames: TagPairs = ()
    framed: bool = False
    """Closers of `frames` count without their openers."""
    inline: bool = False
    """Openers of `frames` count inside running text, too."""
    noise: tuple[str, ...] = ()
    """Control tokens that are dropped where they have no meaning, except in code."""
    call_tokens: tuple[str, ...] = ()
    """Control tokens of calls. Where calls are read, those without a meaning are dropped, except in
    code and where the text mentions them."""
    consumed: str = ""
    """The opener at the end of the prompt, for reasoning that stays in the text."""

    @property
    def block_tokens(self) -> set[str]:
        """The markers of reasoning and text, and the stop tokens."""
        return {*chain.from_iterable((*self.think, *self.frames)), *self.stops}

    @cached_property
    def empty_sections(self) -> tuple[Shape, ...]:
        """Sections without calls, or with an empty list of them. In running text an empty pair of
        tags counts only at the start of a line, because a model may mention its own tags."""
        blank = "{junk}" if any("{junk}" in call.shape.text for call in self.calls) else "{ws}"
        empty: list[Shape] = []
        openers = chain.from_iterable(_openers(call.shape.text) for call in self.calls)
        for opener in dict.fromkeys(openers):
            token = any(char in opener for char in "|｜")
            empty += [
                _indivisible(opener + blank + tail, line_start=not token) for tail in self.tails
            ]
            empty += [_indivisible(opener + "{ws}[{ws}]{ws}" + tail) for tail in (*self.tails, "")]
        return tuple(empty)


@dataclass(frozen=True)
class MarkerContext:
    """The state of a turn that decides which markers count."""

    calls: bool
    reasoning: bool
    framed: bool
    called: bool = False
    """The last block was a call."""
    unclosed: bool = False
    """A call ended reasoning, or reasoning opened twice; a closer of reasoning may still follow."""

    def after_calls(self) -> "MarkerContext":
        """The state after a call, or after a section without calls."""
        unclosed = self.unclosed or self.reasoning
        return replace(self, reasoning=False, unclosed=unclosed, called=True)


class MarkerSets:
    """The markers of a grammar that count, for each state of a turn."""

    def __init__(self, grammar: MarkupMarkers) -> None:
        self._grammar = grammar
        self._openers = [opener for opener, _ in grammar.think]
        self._closers = [closer for _, closer in grammar.think]
        self._answer = with_meaning(MarkerKind.REASONING_END, self._closers)
        self._frame = with_meaning(MarkerKind.FRAME_START, [opener for opener, _ in grammar.frames])
        self._unframe = with_meaning(MarkerKind.FRAME_END, [closer for _, closer in grammar.frames])
        self._sets: dict[MarkerContext, tuple[Markers[Meaning], Markers[Meaning]]] = {}

    def at(self, context: MarkerContext) -> tuple[Markers[Meaning], Markers[Meaning]]:
        """The markers that count at the start of a block, and those that count inside it."""
        if context not in self._sets:
            self._sets[context] = self._compiled(context)
        return self._sets[context]

    def _compiled(self, context: MarkerContext) -> tuple[Markers[Meaning], Markers[Meaning]]:
        boundary: _Meanings
        running: _Meanings
        if context.reasoning:
            inside = self._inside_reasoning(context)
            boundary = [*inside, *with_meaning(MarkerKind.REPEATED_REASONING_START, self._openers)]
            running = [*inside, *with_meaning(MarkerKind.INLINE_REASONING_START, self._openers)]
        else:
            boundary = self._before_text(context)
            running = self._inside_text(context)
        noise = with_meaning(MarkerKind.NOISE, self._grammar.noise)
        if context.calls:
            noise += with_meaning(MarkerKind.STRAY_TOKEN, self._grammar.call_tokens)
        return Markers([*boundary, *noise]), Markers([*running, *noise])

    def _inside_reasoning(self, context: MarkerContext) -> _Meanings:
        leave: _Meanings = []
        if self._grammar.framed:
            leave = [
                (shape, MarkerKind.REASONING_END) for shape, _ in (*self._frame, *self._unframe)
            ]
        return [*self._answer, *leave, *self._always(context)]

    def _before_text(self, context: MarkerContext) -> _Meanings:
        return [
            *with_meaning(MarkerKind.REASONING_START, self._openers),
            *self._answer,
            *self._frame,
            *self._unframe,
            *self._always(context),
            *(self._after_call() if context.called else ()),
            *((_indivisible(tail), MarkerKind.STRAY_CLOSER) for tail in self._text_tails(context)),
        ]

    def _inside_text(self, context: MarkerContext) -> _Meanings:
        tails = self._text_tails(context)
        return [
            *(self._answer if context.unclosed else ()),
            *(self._unframe if context.framed else ()),
            *self._always(context),
            *(
                (Shape(tail, ("\n",), line_start=True), MarkerKind.STRAY_CLOSER_LINE)
                for tail in tails
            ),
            *((_indivisible(tail), MarkerKind.STRAY_CLOSER) for tail in tails),
            *with_meaning(MarkerKind.STRAY_REASONING_END, self._not_noise(self._closers)),
            *with_meaning(MarkerKind.INLINE_REASONING_START, self._openers),
            *(self._frame if self._grammar.inline else ()),
        ]

    def _always(self, context: MarkerContext) -> _Meanings:
        """The markers that count everywhere: those of calls, and the stop tokens."""
        grammar = self._grammar
        stops = with_meaning(MarkerKind.STOP, grammar.stops)
        if not context.calls:
            return stops
        empty = [(shape, MarkerKind.EMPTY_SECTION) for shape in grammar.empty_sections]
        calls = [(call.shape, call) for call in grammar.calls]
        return [*empty, *calls, *stops]

    def _after_call(self) -> _Meanings:
        """The closers of a call and its section: also tags that the format does not have, before
        the closer of the section or the line's end."""
        tails = self._grammar.tails
        closers = with_meaning(MarkerKind.TAIL, (*tails, *self._grammar.joints))
        if not tails:
            return closers
        heads = (*(Shape(tail).head for tail in tails), "\n", END)
        strays = ("{ws}".join(["</{tag}>"] * count) for count in range(1, MAX_STRAYS + 1))
        return [*closers, *with_meaning(MarkerKind.TAIL, strays, then=heads)]

    def _text_tails(self, context: MarkerContext) -> list[str]:
        """The closers of calls that may stand in text, where no call is open."""
        return self._not_noise(self._grammar.tails) if context.calls else []

    def _not_noise(self, markers: Iterable[str]) -> list[str]:
        return [marker for marker in markers if marker not in self._grammar.noise]


def _indivisible(text: str, *, line_start: bool = False) -> Shape:
    """A shape that counts only as a whole: no part of it is unmistakable."""
    return Shape(text, line_start=line_start, marker=text)


def _openers(shape: str) -> Iterable[str]:
    """The markers of sections and wrappers with which a call's shape begins."""
    for end in (*(blank.start() for blank in _BLANK.finditer(shape)), len(shape)):
        opener = shape[:end]
        literal = _FREE.sub("", opener)
        if opener.endswith((">", "]", "functools")) and "{" not in literal:
            yield opener

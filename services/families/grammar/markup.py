"""The grammar of families that mark reasoning and calls inside running text, and its reader.

    reasoning </think> text <call> … </call> text <think> reasoning </think> <call> … </call>

Reasoning opens at a block boundary: at the start, or if only blanks follow the last call or block.
In running text its tags count unless they are mentioned, as a word of a sentence or in code. A
well-formed call ends open reasoning; the closer of the reasoning may still follow. A marker is text
if the grammar does not continue after it, and so is a call in code that goes on after the call. A
section without calls makes no block. A closer without an opener is dropped at a block boundary, on
a line of its own, and at the end of the output; elsewhere it is text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from re import Match, Pattern, compile, escape
from typing import Final, Protocol, TypeAlias

from services.families.grammar.scanner import Reader, Scanner
from services.families.grammar.shapes import END, Markers, Shape, with_meaning
from services.families.grammar.turn import CallOpener, TurnState, read_in_code, read_prose

_BLANK: Final = compile(r"\{(?:ws|junk)\}")
_MAX_STRAYS: Final = 3
_FREE: Final = compile(r"\{(?:ws|junk|suffix)\}")
_BEFORE: Final = "\t\r\n`'\"([{<>/=|*_“‘«「"
"""Characters before a tag that is mentioned."""
_AFTER: Final = ",;:.!?)]}`'\"”’»」"
"""Characters after one."""
_SENTENCE_ENDS: Final = ".!?:…。！？："


class CallReader(Protocol):
    """Reads a call, from after its opening marker to its end, and writes its block."""

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Returns None after a call, which the scanner has passed. Returns the passed text if it is
        not a call."""


@dataclass(frozen=True)
class CallMarker:
    """The marker that opens a call, and its reader; `identify` splits the marker's `{id}` into name
    and call id."""

    shape: Shape
    body: CallReader
    identify: Callable[[str], tuple[str, str]] | None = None

    def read(self, turn: TurnState, match: Match[str]) -> Reader[str | None]:
        """Reads the call after `match`; returns as `CallReader.read` does."""
        groups = match.groupdict()
        name = groups.get("name")
        call_id = groups.get("word")
        if self.identify is not None:
            name, call_id = self.identify(groups["id"])
            if not name:
                return match[0]
        opener = CallOpener(match[0], self.shape.head, name, call_id)
        return (yield from self.body.read(turn, opener))

    @property
    def marked(self) -> bool:
        """Whether its marker is more than brackets or a fence. Such a call may stand in a fence by
        its format."""
        return self.shape.head[0] != "`" and any(map(str.isalnum, self.shape.head))


class MarkerKind(Enum):
    """The meaning of a marker that does not open a call."""

    THINK = "opens reasoning"
    ANSWER = "closes reasoning"
    FRAME = "opens a text that has markers of its own"
    UNFRAME = "closes it"
    AGAIN = "opens reasoning that is open"
    EMPTY = "a section without calls"
    ORPHAN = "closes what is not open"
    ALONE = "the same, on a line of its own"
    LATE = "opens reasoning inside of a text, or inside of reasoning"
    LEAVE = "closes reasoning that is not open"
    TAIL = "closes what contains the call"
    STOP = "ends the turn"
    NOISE = "has no meaning here"


TagPairs: TypeAlias = tuple[tuple[str, str], ...]
"""Openers with their closers."""
Meaning: TypeAlias = "MarkerKind | CallMarker"
_Meanings: TypeAlias = Sequence[tuple[Shape, Meaning]]


@dataclass(frozen=True, kw_only=True)
class Markup:
    """The grammar.

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
    consumed: str = ""
    """The opener at the end of the prompt, for reasoning that stays in the text."""

    def __call__(self, turn: TurnState) -> Reader[None]:
        """Reads a turn."""
        if turn.reasoning and not self.think:
            turn.reasoning = False
            if self.consumed:
                turn.add_prose(self.consumed)
        place = _Place(turn.calls, turn.reasoning, framed=self.framed)
        while True:
            turn.reasoning = place.reasoning
            marker = yield from read_prose(
                turn, *self._markers.at(place), stop=MarkerKind.STOP, tail=MarkerKind.TAIL
            )
            if marker is None:
                return
            if isinstance(marker.meaning, MarkerKind):
                place = yield from self._pass_marker(turn, place, marker.meaning, marker.match)
                continue
            passed = yield from self._call(turn, marker.meaning, marker.match)
            if passed is not None:
                self._quote(turn, passed)
            elif turn.scanner.final:
                return  # the input ended in the call; the rest belongs to it
            else:
                place = place.after_calls()

    def _pass_marker(
        self, turn: TurnState, place: "_Place", kind: MarkerKind, match: Match[str]
    ) -> Reader["_Place"]:
        """Decides whether a marker that does not open a call is text, dropped, or the end of a
        block; returns the state after it."""
        text = match[0]
        match kind:
            case MarkerKind.NOISE:
                if self._is_cut(turn.scanner, match):
                    turn.scanner.position = len(turn.scanner.text)
                self._quote(turn, text)
                return place
            case MarkerKind.LATE if not (yield from _is_tag(turn)):
                self._quote(turn, text)
                return place
            case MarkerKind.LATE if turn.reasoning:
                return replace(place, unclosed=True)
            case MarkerKind.ORPHAN | MarkerKind.ALONE | MarkerKind.LEAVE if (
                turn.quotes or turn.code.fenced
            ):
                turn.quote(text)
                return place
            case MarkerKind.ORPHAN:
                _drop(turn, text)
                return place
            case MarkerKind.LEAVE if not (yield from _is_tag(turn)):
                _drop(turn, text)
                return place
        turn.end_prose()
        turn.blocks.note_passed(text)
        turn.after_thought = len(turn.scanner.rest()) if kind is MarkerKind.ANSWER else None
        return self._after(place, kind)

    def _is_cut(self, scanner: Scanner, match: Match[str]) -> bool:
        """Whether the input was cut off in a marker that a control token begins."""
        if not scanner.final or scanner.stopped:
            return False
        shapes = [
            *(call.shape for call in self.calls),
            *(Shape(opener) for opener, _ in self.think),
        ]
        return any(shape.cut(match.string, match.start()) for shape in shapes)

    def _quote(self, turn: TurnState, text: str) -> None:
        """Adds text that a marker turned out to be to the open block, without control tokens,
        unless it is code."""
        if self.noise and not turn.code.fenced and turn.code.last != "`":
            turn.blocks.note_passed(text)
            text = self._noise.sub("", text)
        if text:
            turn.quote(text)

    @cached_property
    def _noise(self) -> Pattern[str]:
        return compile("|".join(map(escape, self.noise)))

    def _call(self, turn: TurnState, call: CallMarker, match: Match[str]) -> Reader[str | None]:
        """Reads a call, or calls in code; returns as `CallReader.read` does."""
        fenced = call.marked and turn.code.fenced
        if fenced or turn.code.last == "`":
            return read_in_code(turn, self._calls_in_code(turn, call, match, fenced), match.start())
        return call.read(turn, match)

    def _calls_in_code(
        self, turn: TurnState, call: CallMarker, match: Match[str], fenced: bool
    ) -> Reader[bool]:
        """Reads calls; returns whether they are real: the code does not go on after them. A model
        may forget to close a fence."""
        scanner = turn.scanner
        while (yield from call.read(turn, match)) is None:
            yield from scanner.skip(*self._closers)
            if not fenced:
                return (yield from scanner.peek()) != "`"
            yield from scanner.blanks()
            next_call = yield from scanner.match(*(call.shape for call in self.calls))
            if next_call is None:
                return not (yield from scanner.peek())
            number, match = next_call
            call = self.calls[number]
        return False

    @cached_property
    def _closers(self) -> tuple[Shape, ...]:
        return tuple(Shape("{ws}" + text) for text in (*self.tails, *self.stops))

    def _after(self, place: "_Place", kind: MarkerKind) -> "_Place":
        """The state after a marker that does not open a call."""
        match kind:
            case MarkerKind.EMPTY:
                return place.after_calls()
            case MarkerKind.THINK | MarkerKind.LATE:
                return replace(place, reasoning=True, called=False)
            case MarkerKind.ANSWER | MarkerKind.LEAVE:
                unclosed = place.unclosed and place.reasoning
                return replace(place, reasoning=False, unclosed=unclosed, called=False)
            case MarkerKind.FRAME | MarkerKind.UNFRAME:
                return replace(place, framed=self.framed or kind is MarkerKind.FRAME, called=False)
        return place

    @cached_property
    def _markers(self) -> "_MarkerSets":
        return _MarkerSets(self)

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
class _Place:
    """The state of a turn that decides which markers count."""

    calls: bool
    reasoning: bool
    framed: bool
    called: bool = False
    """The last block was a call."""
    unclosed: bool = False
    """A call ended reasoning, or reasoning opened twice; a closer of reasoning may still follow."""

    def after_calls(self) -> "_Place":
        """The state after a call, or after a section without calls."""
        unclosed = self.unclosed or self.reasoning
        return replace(self, reasoning=False, unclosed=unclosed, called=True)


class _MarkerSets:
    """The markers of a grammar that count, for each state of a turn."""

    def __init__(self, grammar: Markup) -> None:
        self._grammar = grammar
        self._openers = [opener for opener, _ in grammar.think]
        self._closers = [closer for _, closer in grammar.think]
        self._answer = with_meaning(MarkerKind.ANSWER, self._closers)
        self._frame = with_meaning(MarkerKind.FRAME, [opener for opener, _ in grammar.frames])
        self._unframe = with_meaning(MarkerKind.UNFRAME, [closer for _, closer in grammar.frames])
        self._sets: dict[_Place, tuple[Markers[Meaning], Markers[Meaning]]] = {}

    def at(self, place: _Place) -> tuple[Markers[Meaning], Markers[Meaning]]:
        """The markers that count at the start of a block, and those that count inside it."""
        if place not in self._sets:
            self._sets[place] = self._compiled(place)
        return self._sets[place]

    def _compiled(self, place: _Place) -> tuple[Markers[Meaning], Markers[Meaning]]:
        boundary: _Meanings
        running: _Meanings
        if place.reasoning:
            inside = self._inside_reasoning(place)
            boundary = [*inside, *with_meaning(MarkerKind.AGAIN, self._openers)]
            running = [*inside, *with_meaning(MarkerKind.LATE, self._openers)]
        else:
            boundary = self._before_text(place)
            running = self._inside_text(place)
        noise = with_meaning(MarkerKind.NOISE, self._grammar.noise)
        return Markers([*boundary, *noise]), Markers([*running, *noise])

    def _inside_reasoning(self, place: _Place) -> _Meanings:
        leave: _Meanings = []
        if self._grammar.framed:
            leave = [(shape, MarkerKind.ANSWER) for shape, _ in (*self._frame, *self._unframe)]
        return [*self._answer, *leave, *self._always(place)]

    def _before_text(self, place: _Place) -> _Meanings:
        return [
            *with_meaning(MarkerKind.THINK, self._openers),
            *self._answer,
            *self._frame,
            *self._unframe,
            *self._always(place),
            *(self._after_call() if place.called else ()),
            *((_indivisible(tail), MarkerKind.ORPHAN) for tail in self._text_tails(place)),
        ]

    def _inside_text(self, place: _Place) -> _Meanings:
        tails = self._text_tails(place)
        return [
            *(self._answer if place.unclosed else ()),
            *(self._unframe if place.framed else ()),
            *self._always(place),
            *((Shape(tail, ("\n",), line_start=True), MarkerKind.ALONE) for tail in tails),
            *((_indivisible(tail), MarkerKind.ORPHAN) for tail in tails),
            *with_meaning(MarkerKind.LEAVE, self._not_noise(self._closers)),
            *with_meaning(MarkerKind.LATE, self._openers),
            *(self._frame if self._grammar.inline else ()),
        ]

    def _always(self, place: _Place) -> _Meanings:
        """The markers that count at every place: those of calls, and the stop tokens."""
        grammar = self._grammar
        stops = with_meaning(MarkerKind.STOP, grammar.stops)
        if not place.calls:
            return stops
        empty = [(shape, MarkerKind.EMPTY) for shape in grammar.empty_sections]
        calls = [(call.shape, call) for call in grammar.calls]
        return [*empty, *calls, *stops]

    def _after_call(self) -> _Meanings:
        """What closes a call and its section: also tags that the format does not have, before the
        closer of the section or the line's end."""
        tails = self._grammar.tails
        closers = with_meaning(MarkerKind.TAIL, (*tails, *self._grammar.joints))
        if not tails:
            return closers
        heads = (*(Shape(tail).head for tail in tails), "\n", END)
        strays = ("{ws}".join(["</{tag}>"] * count) for count in range(1, _MAX_STRAYS + 1))
        return [*closers, *with_meaning(MarkerKind.TAIL, strays, then=heads)]

    def _text_tails(self, place: _Place) -> list[str]:
        """The closers of calls that may stand in text, where no call is open."""
        return self._not_noise(self._grammar.tails) if place.calls else []

    def _not_noise(self, markers: Iterable[str]) -> list[str]:
        return [marker for marker in markers if marker not in self._grammar.noise]


def _is_tag(turn: TurnState) -> Reader[bool]:
    """Whether a tag of reasoning in running text, which the scanner has just passed, is more than a
    mention.

    It begins a line, or nothing sets it apart from the text around it, unlike a word.
    """
    if turn.code.fenced or turn.line_start:
        return not turn.code.fenced
    ahead = (yield from turn.scanner.peek()) or "\n"
    if turn.code.last == " ":
        return turn.code.end[0] in _SENTENCE_ENDS and ahead not in _AFTER and ahead != " "
    return turn.code.last not in _BEFORE and ahead not in _AFTER


def _drop(turn: TurnState, text: str) -> None:
    """Drops a marker, unless text follows it in an open block."""
    if turn.started:
        turn.hold(text)
    else:
        turn.blocks.note_passed(text)


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

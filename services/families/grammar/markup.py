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

from services.families.grammar.mentions import is_mention
from services.families.grammar.scanner import Reader
from services.families.grammar.shapes import END, MAX_STRAYS, Markers, Shape, with_meaning
from services.families.grammar.turn import (
    CallOpener,
    CallReading,
    TurnState,
    not_a_call,
    read_in_code,
    read_prose,
)

_BLANK: Final = compile(r"\{(?:ws|junk)\}")
_FREE: Final = compile(r"\{(?:ws|junk|suffix)\}")


class CallReader(Protocol):
    """Reads a call, from after its opening marker to its end, and writes its block."""

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Returns whether the scanner has passed a call, and the passed text if it has not."""


@dataclass(frozen=True)
class CallMarker:
    """The marker that opens a call, and its reader; `identify` splits the marker's `{id}` into name
    and call id."""

    shape: Shape
    body: CallReader
    identify: Callable[[str], tuple[str, str]] | None = None

    def read(self, turn: TurnState, match: Match[str]) -> Reader[CallReading]:
        """Reads the call after `match`; returns as `CallReader.read` does."""
        groups = match.groupdict()
        name = groups.get("name")
        call_id = groups.get("word")
        if self.identify is not None:
            name, call_id = self.identify(groups["id"])
            if not name:
                return not_a_call(match[0])
        opener = CallOpener(match[0], self.shape.head, name, call_id)
        return (yield from self.body.read(turn, opener))

    @property
    def marked(self) -> bool:
        """Whether its marker is more than brackets or a fence. Such a call may stand in a fence by
        its format."""
        return self.shape.head[0] != "`" and any(map(str.isalnum, self.shape.head))


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


_STRAYS: Final = frozenset(
    {MarkerKind.STRAY_CLOSER, MarkerKind.STRAY_CLOSER_LINE, MarkerKind.STRAY_REASONING_END}
)
"""Closers of what is not open."""
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
    call_tokens: tuple[str, ...] = ()
    """Control tokens of calls. Where calls are read, those without a meaning are dropped, except in
    code and where the text mentions them."""
    consumed: str = ""
    """The opener at the end of the prompt, for reasoning that stays in the text."""

    @property
    def block_tokens(self) -> set[str]:
        """The markers of reasoning and text, and the stop tokens."""
        return {*chain.from_iterable((*self.think, *self.frames)), *self.stops}

    def __call__(self, turn: TurnState) -> Reader[None]:
        """Reads a turn."""
        if turn.reasoning and not self.think:
            turn.reasoning = False
            if self.consumed:
                turn.add_prose(self.consumed)
        context = _MarkerContext(turn.calls, turn.reasoning, framed=self.framed)
        while True:
            turn.reasoning = context.reasoning
            marker = yield from read_prose(
                turn, *self._markers.at(context), stop=MarkerKind.STOP, tail=MarkerKind.TAIL
            )
            if marker is None:
                return
            if isinstance(marker.meaning, MarkerKind):
                context = yield from self._pass_marker(turn, context, marker.meaning, marker.match)
                continue
            mentions_markers = turn.mentions_markers
            before = turn.blocks.index
            turn.in_call = True
            reading = yield from self._call(turn, marker.meaning, marker.match)
            turn.in_call = False
            if not reading.is_call:
                if marker.meaning.marked and not mentions_markers and not turn.in_code:
                    turn.blocks.broken_calls += 1
                self._add_unread(turn, reading.text, is_mention=mentions_markers)
            elif turn.scanner.final:
                if turn.blocks.index == before:
                    turn.blocks.broken_calls += 1
                return  # the input ended in the call; the rest belongs to it
            else:
                turn.damaged = not turn.blocks.is_last_complete
                context = context.after_calls()

    def _pass_marker(
        self, turn: TurnState, context: "_MarkerContext", kind: MarkerKind, match: Match[str]
    ) -> Reader["_MarkerContext"]:
        """Decides whether a marker that does not open a call is text, dropped, or the end of a
        block; returns the state after it."""
        text = match[0]
        if kind in (MarkerKind.NOISE, MarkerKind.STRAY_TOKEN):
            self._pass_token(turn, match, kind)
            return context

        if kind is MarkerKind.INLINE_REASONING_START:
            if not (yield from _is_tag(turn)):
                turn.quote(text)
                return context
            if turn.reasoning:
                return replace(context, unclosed=True)

        if kind in _STRAYS and not (yield from self._pass_stray(turn, kind, text)):
            return context

        turn.end_prose()
        turn.blocks.note_passed(text)
        turn.after_thought = len(turn.scanner.rest()) if kind is MarkerKind.REASONING_END else None
        return self._after(context, kind)

    def _pass_token(self, turn: TurnState, match: Match[str], kind: MarkerKind) -> None:
        """Passes a control token that has no meaning here."""
        if self._is_cut(turn, match):
            turn.drop(turn.scanner.text[match.start() :])
            turn.scanner.position = len(turn.scanner.text)
        elif kind is MarkerKind.STRAY_TOKEN:
            turn.pass_token(match[0])
        elif turn.in_code:
            turn.quote(match[0])
        else:
            turn.drop(match[0])

    def _pass_stray(self, turn: TurnState, kind: MarkerKind, text: str) -> Reader[bool]:
        """Passes a closer of what is not open; returns whether it ends the block. Otherwise it
        becomes text of the block, or is dropped."""
        if not turn.damaged and (turn.quotes or turn.code.fenced):
            turn.quote(text)
            return False

        is_end = kind is MarkerKind.STRAY_CLOSER_LINE
        if kind is MarkerKind.STRAY_REASONING_END:
            is_end = yield from _is_tag(turn)
        if is_end:
            return True
        is_token = self._call_tokens.search(text) is not None
        if turn.started and not turn.damaged and (not is_token or turn.mentions_markers):
            turn.buffer(text)  # is dropped, unless text follows
        else:
            turn.drop(text)
        return False

    def _is_cut(self, turn: TurnState, match: Match[str]) -> bool:
        """Whether the input ends in a marker that a control token begins."""
        scanner = turn.scanner
        if not scanner.final:
            return False
        shapes = [] if turn.started else list(map(Shape, self.tails))
        if not scanner.stopped:
            shapes += [call.shape for call in self.calls]
            shapes += [Shape(opener) for opener, _ in self.think]
        return any(shape.cut(match.string, match.start()) for shape in shapes)

    def _add_unread(self, turn: TurnState, text: str, is_mention: bool) -> None:
        """Adds text that began like a call to the open block, without control tokens."""
        if turn.in_code:
            turn.quote(text)
            return
        turn.damaged = turn.damaged or not is_mention
        turn.quotes = turn.quotes or is_mention
        turn.add_without(self._noise if is_mention else self._tokens, text)

    @cached_property
    def _noise(self) -> Pattern[str]:
        return _any_of(self.noise)

    @cached_property
    def _call_tokens(self) -> Pattern[str]:
        return _any_of(self.call_tokens)

    @cached_property
    def _tokens(self) -> Pattern[str]:
        return _any_of((*self.noise, *self.call_tokens))

    def _call(self, turn: TurnState, call: CallMarker, match: Match[str]) -> Reader[CallReading]:
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
        while (yield from call.read(turn, match)).is_call:
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

    def _after(self, context: "_MarkerContext", kind: MarkerKind) -> "_MarkerContext":
        """The state after a marker that does not open a call."""
        match kind:
            case MarkerKind.EMPTY_SECTION:
                return context.after_calls()
            case MarkerKind.REASONING_START | MarkerKind.INLINE_REASONING_START:
                return replace(context, reasoning=True, called=False)
            case MarkerKind.REASONING_END | MarkerKind.STRAY_REASONING_END:
                unclosed = context.unclosed and context.reasoning
                return replace(context, reasoning=False, unclosed=unclosed, called=False)
            case MarkerKind.FRAME_START | MarkerKind.FRAME_END:
                return replace(
                    context, framed=self.framed or kind is MarkerKind.FRAME_START, called=False
                )
        return context

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
class _MarkerContext:
    """The state of a turn that decides which markers count."""

    calls: bool
    reasoning: bool
    framed: bool
    called: bool = False
    """The last block was a call."""
    unclosed: bool = False
    """A call ended reasoning, or reasoning opened twice; a closer of reasoning may still follow."""

    def after_calls(self) -> "_MarkerContext":
        """The state after a call, or after a section without calls."""
        unclosed = self.unclosed or self.reasoning
        return replace(self, reasoning=False, unclosed=unclosed, called=True)


class _MarkerSets:
    """The markers of a grammar that count, for each state of a turn."""

    def __init__(self, grammar: Markup) -> None:
        self._grammar = grammar
        self._openers = [opener for opener, _ in grammar.think]
        self._closers = [closer for _, closer in grammar.think]
        self._answer = with_meaning(MarkerKind.REASONING_END, self._closers)
        self._frame = with_meaning(MarkerKind.FRAME_START, [opener for opener, _ in grammar.frames])
        self._unframe = with_meaning(MarkerKind.FRAME_END, [closer for _, closer in grammar.frames])
        self._sets: dict[_MarkerContext, tuple[Markers[Meaning], Markers[Meaning]]] = {}

    def at(self, context: _MarkerContext) -> tuple[Markers[Meaning], Markers[Meaning]]:
        """The markers that count at the start of a block, and those that count inside it."""
        if context not in self._sets:
            self._sets[context] = self._compiled(context)
        return self._sets[context]

    def _compiled(self, context: _MarkerContext) -> tuple[Markers[Meaning], Markers[Meaning]]:
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

    def _inside_reasoning(self, context: _MarkerContext) -> _Meanings:
        leave: _Meanings = []
        if self._grammar.framed:
            leave = [
                (shape, MarkerKind.REASONING_END) for shape, _ in (*self._frame, *self._unframe)
            ]
        return [*self._answer, *leave, *self._always(context)]

    def _before_text(self, context: _MarkerContext) -> _Meanings:
        return [
            *with_meaning(MarkerKind.REASONING_START, self._openers),
            *self._answer,
            *self._frame,
            *self._unframe,
            *self._always(context),
            *(self._after_call() if context.called else ()),
            *((_indivisible(tail), MarkerKind.STRAY_CLOSER) for tail in self._text_tails(context)),
        ]

    def _inside_text(self, context: _MarkerContext) -> _Meanings:
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

    def _always(self, context: _MarkerContext) -> _Meanings:
        """The markers that count everywhere: those of calls, and the stop tokens."""
        grammar = self._grammar
        stops = with_meaning(MarkerKind.STOP, grammar.stops)
        if not context.calls:
            return stops
        empty = [(shape, MarkerKind.EMPTY_SECTION) for shape in grammar.empty_sections]
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
        strays = ("{ws}".join(["</{tag}>"] * count) for count in range(1, MAX_STRAYS + 1))
        return [*closers, *with_meaning(MarkerKind.TAIL, strays, then=heads)]

    def _text_tails(self, context: _MarkerContext) -> list[str]:
        """The closers of calls that may stand in text, where no call is open."""
        return self._not_noise(self._grammar.tails) if context.calls else []

    def _not_noise(self, markers: Iterable[str]) -> list[str]:
        return [marker for marker in markers if marker not in self._grammar.noise]


def _is_tag(turn: TurnState) -> Reader[bool]:
    """Whether a tag of reasoning in running text, which the scanner has just passed, counts."""
    if turn.code.fenced:
        return False
    if turn.line_start:
        return True
    ahead = yield from turn.scanner.peek()
    return not is_mention(turn.code.end, ahead)


def _any_of(tokens: Iterable[str]) -> Pattern[str]:
    return compile("|".join(map(escape, tokens)) or r"(?!)")


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

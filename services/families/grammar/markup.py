"""The grammar of families that mark reasoning and calls inside running text, and its reader.

    reasoning </think> text <call> … </call> text <think> reasoning </think> <call> … </call>

Reasoning opens at a block boundary: at the start, or if only blanks follow the last call or block.
In running text its tags count unless they are mentioned, as a word of a sentence or in code. A
well-formed call ends open reasoning; the closer of the reasoning may still follow. A marker is text
if the grammar does not continue after it, and so is a call in code that goes on after the call. A
section without calls makes no block. A closer without an opener is dropped at a block boundary, on
a line of its own, and at the end of the output; elsewhere it is text.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from re import Match, Pattern, compile, escape
from typing import Final

from services.families.grammar.call_marker import CallMarker
from services.families.grammar.calls_in_code import read_in_code
from services.families.grammar.marker_sets import (
    MarkerContext,
    MarkerKind,
    MarkerSets,
    MarkupMarkers,
)
from services.families.grammar.mentions import is_mention
from services.families.grammar.prose import read_prose
from services.families.grammar.scanner import Reader
from services.families.grammar.shapes import Shape
from services.families.grammar.turn_state import CallReading, TurnState

_STRAYS: Final = frozenset(
    {MarkerKind.STRAY_CLOSER, MarkerKind.STRAY_CLOSER_LINE, MarkerKind.STRAY_REASONING_END}
)
"""Closers of what is not open."""


@dataclass(frozen=True, kw_only=True)
class Markup(MarkupMarkers):
    """The grammar, which reads a turn."""

    def __call__(self, turn: TurnState) -> Reader[None]:
        """Reads a turn."""
        if turn.reasoning and not self.think:  # what the prompt opened stays in the text
            turn.reasoning = False
            turn.add_prose(self.consumed)
        context = MarkerContext(turn.calls, turn.reasoning, framed=self.framed)
        while True:
            turn.reasoning = context.reasoning
            boundary, running = self._markers.at(context)
            marker = yield from read_prose(
                turn, boundary, running, stop=MarkerKind.STOP, tail=MarkerKind.TAIL
            )
            if marker is None:
                return
            if isinstance(marker.meaning, MarkerKind):
                context = yield from self._pass_marker(turn, context, marker.meaning, marker.match)
            elif (yield from self._pass_call(turn, marker.meaning, marker.match)):
                if turn.scanner.final:
                    return  # the input ended in the call; the rest belongs to it
                context = context.after_calls()

    def _pass_call(self, turn: TurnState, call: CallMarker, match: Match[str]) -> Reader[bool]:
        """Reads what a call's marker opens; returns whether it is a call, and not text of the open
        block."""
        is_mention = turn.mentions_markers
        before = turn.blocks.index
        turn.in_call = True
        reading = yield from self._call(turn, call, match)
        turn.in_call = False
        if not reading.is_call:
            if call.marked and not is_mention and not turn.in_code:
                turn.blocks.broken_calls += 1
            self._add_unread(turn, reading.text, is_mention)
        elif not turn.scanner.final:
            turn.damaged = not turn.blocks.is_last_complete
        elif turn.blocks.index == before:
            turn.blocks.broken_calls += 1
        return reading.is_call

    def _pass_marker(
        self, turn: TurnState, context: MarkerContext, kind: MarkerKind, match: Match[str]
    ) -> Reader[MarkerContext]:
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
        """Passes a closer without an opener; returns whether it ends the block. Otherwise it
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
        """Reads a call, or calls in code, and returns the result of `CallReader.read`."""
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

    def _after(self, context: MarkerContext, kind: MarkerKind) -> MarkerContext:
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
    def _markers(self) -> MarkerSets:
        return MarkerSets(self)


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

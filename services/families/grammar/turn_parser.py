"""The `TurnParser`, which runs the grammar of a family over one turn."""

from collections.abc import Callable
from typing import TypeAlias

from schemas.events import BlockEvent, FinishReason
from services.families.grammar.scanner import PlainStretch, Reader
from services.families.grammar.turn_state import TurnState
from services.families.tool_types import Tools

TurnGrammar: TypeAlias = Callable[[TurnState], Reader[None]]


class TurnParser:
    """Splits one generation into reasoning, text and tool_use blocks, in order, as it streams in.

    Call `feed` any number of times, then `finish` once. The blocks do not depend on how the text is
    split into calls of `feed`, a returned event is never revised, and no text raises an exception.
    """

    __slots__ = ("_blocks", "_program", "_turn", "scanner", "stretch")

    def __init__(self, program: TurnGrammar, turn: TurnState, prefix: str = "") -> None:
        self._turn = turn
        self.scanner = turn.scanner
        self.stretch: PlainStretch | None = None
        """The stretch that the turn is in: what is plain there need not be fed; see
        `count_passed`."""
        self._blocks = turn.blocks
        self._program = program(turn)
        next(self._program, None)
        if prefix:
            self._read(prefix)
            turn.resume(prefix)
        self.stretch = None  # the first feed returns the events so far

    @property
    def in_reasoning(self) -> bool:
        """Whether the open block, or else the next one, is reasoning; also while its events are
        held back."""
        kind = self._blocks.kind
        if kind is None:
            return self._turn.reasoning
        return kind == "reasoning"

    @property
    def after_thought(self) -> int | None:
        """The input after the last thought's own closer (`TurnState.after_thought`)."""
        return self._turn.after_thought

    @property
    def broken_calls(self) -> int:
        """The number of calls that are not complete, or were given up as text."""
        return self._blocks.broken_calls

    @property
    def is_outside_calls(self) -> bool:
        """Whether all text so far is prose, or of calls that have ended: none of it may belong to a
        call that follows, or to its opener."""
        return not self._turn.in_call and self.scanner.position == len(self.scanner.text)

    @property
    def tools(self) -> Tools:
        """The tools of the request."""
        return self._turn.tools

    def feed(self, text: str) -> list[BlockEvent]:
        """Adds the next piece of the generation; returns the events that are now certain."""
        if not text:
            return []
        self._read(text)
        return self._blocks.drain()

    def count_passed(self, text: str) -> None:
        """Counts text that the caller put into the open block itself, because it is plain in
        `stretch`. Must be called before the next `feed` or `finish`."""
        self._blocks.length += len(text)
        if self._blocks.kind != "tool_use":
            self._turn.code.add(text)

    def finish(self, reason: FinishReason) -> list[BlockEvent]:
        """Ends the generation: decides about text that was held back, and closes all blocks.

        With `FinishReason.STOP` a call with a whole body is complete even without its closing
        marker; with any other reason it is not.
        """
        self.scanner.final = True
        self.scanner.reason = reason
        self._read("")
        self._turn.end_prose()
        self._blocks.settle(stopped=reason is FinishReason.STOP)
        return self._blocks.drain()

    def _read(self, text: str) -> None:
        self.scanner.extend(text)
        stretch = next(self._program, None)
        self.stretch = None if self._blocks.is_buffering else stretch

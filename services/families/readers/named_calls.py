"""Reads calls that are only a name: without arguments, cut off after the name, or in a form that
cannot be read."""

from dataclasses import dataclass
from functools import cached_property
from re import compile
from typing import Final

from services.families.grammar.scanner import Reader
from services.families.grammar.shapes import Markers, Shape, with_meaning
from services.families.grammar.turn_state import (
    IS_CALL,
    CallOpener,
    CallReading,
    TurnState,
    not_a_call,
)

_WORD: Final = compile(r"[\w.:-]*\w")


@dataclass(frozen=True)
class BareCall:
    """A call that is only a name: `whole` if it has no arguments; one that broke off after the name
    never completes.

    `ends_turn`: the end of the turn may be all that closes it. `next_calls`: it completes only
    before one of these, because other text may be what is left of its arguments.
    """

    whole: bool
    ends_turn: bool = False
    next_calls: tuple[Shape, ...] = ()

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Writes the block; reads nothing."""
        scanner = turn.scanner
        cut_off = scanner.final and not scanner.stopped and not scanner.rest().strip()
        whole = self.whole and not (self.ends_turn and cut_off)
        if self.next_calls:
            whole = yield from scanner.follows(*self.next_calls)
        turn.open_call(turn.tools.registered_name(opener.name or ""), opener.call_id)
        if whole:
            turn.blocks.write("{}")
        turn.blocks.close(whole)
        return IS_CALL


@dataclass(frozen=True)
class UnreadableCall:
    """A call that cannot be read after its opener, up to one of `call_closers`. It never completes
    if its opener names a tool of the request; otherwise the opener is text."""

    call_closers: tuple[str, ...]

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Passes the call. An opener at the end of the input may lack some of its name."""
        scanner = turn.scanner
        if scanner.final and not scanner.stopped and not scanner.rest():
            return IS_CALL
        name = next((word for word in _WORD.findall(opener.text) if word in turn.tools), None)
        if name is None:
            before = opener.text[: max(opener.text.rindex("<"), 1)]
            scanner.position -= len(opener.text) - len(before)
            return not_a_call(before)
        turn.open_call(name)
        turn.blocks.close(False)
        yield from scanner.seek(self._ends)
        return IS_CALL

    @cached_property
    def _ends(self) -> Markers[None]:
        return Markers(with_meaning(None, self.call_closers))

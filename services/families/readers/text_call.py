"""Reads calls with a body of bare text: the tool's only parameter. A body in JSON has all
arguments."""

from dataclasses import dataclass
from functools import cached_property
from re import compile
from typing import Final

from services.families.grammar.scanner import PlainStretch, Reader, quoted
from services.families.grammar.shapes import END, MarkerMatch, Markers, Shape
from services.families.grammar.turn_state import IS_CALL, CallOpener, CallReading, TurnState
from services.families.readers.bare_text import copy_text
from services.families.readers.json_calls import Form, JsonCalls
from services.families.readers.value_sinks import StringSink
from services.families.tool_types import STRING, Tools

_STRETCH: Final = PlainStretch(compile(r"\n").search, escape=True)


@dataclass(frozen=True)
class TextCall:
    """The grammar after the opening tag: text up to `close` on a line of its own. The tag is text
    unless the turn ends after it, or one of `openers` follows. A tool with other parameters than
    one string has its arguments in JSON."""

    close: str
    openers: tuple[str, ...]

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Reads the call."""
        scanner = turn.scanner
        name = turn.tools.registered_name(opener.name or "")
        key = _only_string(turn.tools, name)
        if not key or (yield from scanner.follows(*self._json)):
            arguments = JsonCalls(form=Form.ARGUMENTS, call_closers=(self.close,))
            return (yield from arguments.read(turn, opener))
        turn.open_call(name)
        turn.blocks.write("{" + quoted(key) + ": ")
        sink = StringSink(turn.blocks.write)
        end = yield from copy_text(scanner, self._ends, _ends, sink, _STRETCH)
        if end is not None:
            yield from scanner.match(Shape("{ws}" + self.close))
            sink.end()
            turn.blocks.write("}")
        turn.blocks.close(end is not None and (scanner.stopped or not scanner.final))
        return IS_CALL

    @cached_property
    def _json(self) -> tuple[Shape, ...]:
        return (
            Shape("{ws}{", marker="{"),
            Shape("{ws}" + self.close),
            Shape("{ws}null{ws}" + self.close),
        )

    @cached_property
    def _ends(self) -> Markers[None]:
        return Markers([(Shape("\n" + self.close, then=(*self.openers, END)), None)])


def _only_string(tools: Tools, name: str) -> str:
    """The only parameter of a tool, if it is a string; else an empty string."""
    keys = [*tools.parameters(name)]
    if len(keys) != 1 or tools.types(name, keys[0]) != STRING:
        return ""
    return keys[0]


def _ends(end: MarkerMatch[None], framed: bool) -> bool:
    return True

"""Writes the grammar rules of a call: the family's markup around its arguments."""

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from schemas.conversation import ToolSpec
from services.families import Family
from services.families.grammar.markup import Markup
from services.families.readers.gemma import GemmaStyle
from services.families.readers.nested import NestedStyle
from services.families.readers.parameters import Parameters
from services.families.readers.pythonic import python_style
from services.families.writing import ARGUMENTS, NAME, Tags, as_json
from services.guides.arguments import (
    ArgumentRules,
    JsonArguments,
    TaggedArguments,
)
from services.guides.notation import GemmaArguments, NestedArguments, PythonArguments
from services.guides.tool_schemas import is_deep
from services.guides.writer import RuleWriter, Unguidable


class CallRules:
    """Writes calls of one family. `lost` collects the promises that cannot be kept, as `PROMISE
    TOOL`."""

    def __init__(self, family: Family, writer: RuleWriter, stops: Sequence[str] = ()) -> None:
        """`stops`: the text of the tokens that end the turn. Raises Unguidable."""
        self._writer = writer
        self._counter = family.style.counter
        self._before_arguments, arguments, after = family.style.call.partition(ARGUMENTS)
        self._after_arguments = _without_stops(after, [*stops, *family.stops])
        self.lost: list[str] = []
        if not arguments:
            raise _own_form(family)
        self._arguments = _arguments_of(family, writer, self.lost)
        self._bodies: dict[str, str] = {}

    def before_arguments(self, tool: ToolSpec) -> str:
        """The text of a call before its arguments."""
        return self._before_arguments.replace(NAME, tool.name)

    def call(self, tool: ToolSpec, written: str) -> str:
        """The rest of a call that begins with `written`."""
        if tool.name not in self._bodies:
            self._bodies[tool.name] = self._arguments_of(tool)
        before = self.before_arguments(tool).removeprefix(written)
        after = self._after_arguments.replace(NAME, tool.name)
        parts = [self._counted(before), self._bodies[tool.name], self._counted(after)]
        return self._writer.rule(" ".join(filter(None, parts)))

    def _arguments_of(self, tool: ToolSpec) -> str:
        if tool.strict and is_deep(tool.schema):
            self._arguments.lose("strict", tool)
            tool = replace(tool, strict=None)
        return self._arguments.rule(tool)

    def _counted(self, text: str) -> str:
        """Literal text, except that the call's number may be any."""
        literal = self._writer.literal
        counter = self._counter
        if not counter or counter not in text:
            return literal(text)
        before, after = text.split(counter, 1)
        left, right = re.split("[0-9]", counter, maxsplit=1)
        number = self._writer.terminal("/[0-9]{1,4}/")
        return f"{literal(before + left)} {number} {literal(right + after)}"


def _without_stops(text: str, stops: Iterable[str]) -> str:
    """The text up to a token at which the engine ends the turn by itself."""
    for stop in stops:
        text = text.removesuffix(stop)
    return text


def _own_form(family: Family) -> Unguidable:
    return Unguidable(f"the calls of {family.name} have a form of their own")


def _arguments_of(family: Family, writer: RuleWriter, lost: list[str]) -> ArgumentRules:
    """The rules of a family's arguments. Raises Unguidable."""
    arguments = family.style.arguments
    if arguments is as_json:
        return JsonArguments(writer, lost)
    if isinstance(arguments, Tags) and isinstance(family.grammar, Markup):
        for call in family.grammar.calls:
            if isinstance(call.body, Parameters):
                return TaggedArguments(writer, lost, arguments, call.body)
    if arguments is python_style:
        return PythonArguments(writer, lost)
    if isinstance(arguments, GemmaStyle):
        before, _, after = family.style.call.partition(ARGUMENTS)
        markers = (before.partition(NAME)[0], after)
        return GemmaArguments(writer, lost, arguments.token, markers)
    if isinstance(arguments, NestedStyle):
        return NestedArguments(writer, lost, arguments.token)
    raise _own_form(family)

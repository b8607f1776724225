"""A request's tools in the forms that the chat template, the ledger and the parser read."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from schemas.conversation import ToolSpec
from services.families.bare_tools import types_json
from services.templates.chat_template import Tool
from services.templates.jinja import with_cached_json
from services.tokenization.data_marks import Marker

_GRAMMARS = {"lark": "Lark grammar", "regex": "regular expression"}
_CUSTOM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as plain text."}},
    "required": ["input"],
}
_encode = msgspec.json.Encoder().encode


def tool_name(name: str, namespace: str | None) -> str:
    """The name under which the model sees a tool."""
    return f"{namespace}__{name}" if namespace else name


def tool_definition(tool: ToolSpec) -> Tool:
    """A tool as chat templates read it. A freeform tool becomes a function with one string, `input`; its grammar, if
    it has one, is appended to the description."""
    schema = tool.schema or (_CUSTOM_SCHEMA if tool.kind == "custom" else {"type": "object", "properties": {}})
    name, description = tool_name(tool.name, tool.namespace), tool.description
    if (grammar := tool.grammar) is not None:
        kind = _GRAMMARS.get(grammar.syntax, grammar.syntax)
        rule = f"`input` must match this {kind}:\n{grammar.definition}"
        description = f"{description}\n\n{rule}" if description else rule
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def list_tools(tools: Iterable[ToolSpec]) -> list[Tool]:
    """The tools at the front of the prompt. A deferred tool is missing: the result that loads it shows it."""
    return [tool_definition(tool) for tool in tools if not tool.deferred]


def rendered_tool(tool: ToolSpec) -> ToolSpec:
    """A tool under the name, and with the schema, that the model sees."""
    function = tool_definition(tool)["function"]
    return replace(tool, name=function["name"], schema=function["parameters"], namespace=None)


class SessionTools(list[ToolSpec]):
    """A list of tools and its other forms, each made once. The list must not change.

    The preprocessor's `RequestDecoder` returns one object for all requests that send the same tools.
    """

    _marked: tuple[Marker, list[Tool]] | None = None

    @classmethod
    def of(cls, tools: list[ToolSpec]) -> "SessionTools":
        """`tools` itself where it has forms already."""
        return tools if isinstance(tools, cls) else cls(tools)

    @cached_property
    def rendered(self) -> list[ToolSpec]:
        """The tools under the names and with the schemas that the model sees, deferred ones included."""
        return [rendered_tool(tool) for tool in self]

    @cached_property
    def definitions(self) -> list[Tool]:
        """The tools at the front of the prompt, as chat templates read them. Each object keeps its JSON."""
        definitions = list_tools(self)
        try:
            return [with_cached_json(definition) for definition in definitions]
        except RecursionError:  # schemas may be nested deeper than Python functions recurse
            return definitions

    def marked_definitions(self, marker: Marker | None) -> list[Tool]:
        """`definitions`, marked."""
        if marker is None:
            return self.definitions
        if self._marked is None or self._marked[0] is not marker:
            marked = self.definitions
            if not self._is_clean(marker):
                marked = [self._mark(definition, marker) for definition in marked]
            self._marked = marker, marked
        return self._marked[1]

    def _is_clean(self, marker: Marker) -> bool:
        try:
            return marker.is_clean(self._rendered_json.decode())
        except UnicodeEncodeError:  # lone surrogates
            return False

    def _mark(self, definition: Tool, marker: Marker) -> Tool:
        """The definition itself where nothing is to be marked: it may keep its JSON."""
        function = definition["function"]
        marked = {key: marker.mark_json(value) for key, value in function.items()}
        if all(marked[key] is value for key, value in function.items()):
            return definition
        fresh: Tool = {**definition, "function": marked}
        return cast(Tool, with_cached_json(fresh))

    @cached_property
    def parser_json(self) -> bytes:
        """`rendered` as JSON, with what parsers need."""
        return types_json(self.rendered, self._rendered_json)

    @cached_property
    def _rendered_json(self) -> bytes:
        return _encode(self.rendered)

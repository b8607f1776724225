"""A request's tools, and the arguments of their calls, in the forms that the chat template, the
ledger and the parser read."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, ToolSpec
from services.families.bare_tools import reduced_json
from services.templates.chat_template import TemplateTool
from services.templates.json_values import JsonDict
from services.tokenization.data_marks import DataMarker

_GRAMMARS = {"lark": "Lark grammar", "regex": "regular expression"}
_CUSTOM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as plain text."}},
    "required": ["input"],
}
_UNPARSED = "__unparsed"


def tool_definition(tool: ToolSpec) -> TemplateTool:
    """A tool as chat templates read it. A freeform tool becomes a function with one string,
    `input`; its grammar, if it has one, is appended to the description."""
    schema = tool.schema
    if not schema:
        schema = _CUSTOM_SCHEMA if tool.kind == "custom" else {"type": "object", "properties": {}}
    name = tool.rendered_name
    description = tool.description
    grammar = tool.grammar
    if grammar is not None:
        kind = _GRAMMARS.get(grammar.syntax, grammar.syntax)
        rule = f"`input` must match this {kind}:\n{grammar.definition}"
        description = f"{description}\n\n{rule}" if description else rule
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


def list_tools(tools: Iterable[ToolSpec]) -> list[TemplateTool]:
    """The tools at the start of the prompt. A deferred tool is not among them: the result that
    loads it defines it."""
    return [tool_definition(tool) for tool in tools if not tool.deferred]


def rendered_tool(tool: ToolSpec) -> ToolSpec:
    """A tool under the name, and with the schema, that the model sees."""
    function = tool_definition(tool)["function"]
    return replace(tool, name=function["name"], schema=function["parameters"], namespace=None)


def arguments_of(call: Call) -> dict[str, Any]:
    """A call's arguments as an object, so that a prompt does not depend on how the client spells
    JSON."""
    return read_arguments(call.arguments, freeform=call.kind == "custom")


def decode_json(text: str) -> Any:
    """`json.loads` in an eighth of the time. msgspec refuses what JSON lacks, such as NaN and lone
    surrogates, and reads all else to the same values. Raises as `json.loads`."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return json.loads(text)


def read_arguments(
    text: str, *, freeform: bool, decode: Callable[[str], Any] = decode_json
) -> dict[str, Any]:
    """Arguments as an object. `freeform`: the text is a freeform tool's `input`, unless it is an
    object that holds it. Text that is not a JSON object is kept whole under one name. `decode`
    reads the JSON, and raises as `json.loads`."""
    value: Any = {}
    try:
        if text.strip():
            value = decode(text)
    except (ValueError, RecursionError):
        value = None
    if freeform and not (isinstance(value, dict) and value.keys() == {"input"}):
        return {"input": text}
    return value if isinstance(value, dict) else {_UNPARSED: text}


class PromptTools(Struct, frozen=True):
    """A request's tools in the forms that a prompt needs, shared by equal tools
    (`PromptToolCache`)."""

    specs: list[ToolSpec] = []
    """The tools under the names and with the schemas that the model sees, deferred ones
    included."""
    definitions: list[TemplateTool] = []
    """The tools at the start of the prompt, marked. They cache their JSON."""
    parser_json: bytes = b"[]"
    """`specs` as JSON, with what parsers need."""
    tokens: int = 0
    """Tokens of the definitions, about: templates write them in several forms."""

    @classmethod
    def of(cls, tools: Sequence[ToolSpec], data: bytes, marker: DataMarker | None) -> "PromptTools":
        """All forms; `tokens` is 0. `data`: the tools as JSON; `marker`: marks the control tokens
        that they spell. Raises RecursionError for schemas that are nested too deeply."""
        rendered = [rendered_tool(tool) for tool in tools]
        definitions = list_tools(tools)
        if marker is not None and not marker.is_clean(data.decode()):
            definitions = [_marked(definition, marker) for definition in definitions]
        return cls(
            rendered,
            [with_cached_json(definition) for definition in definitions],
            reduced_json(rendered),
        )


def _marked(definition: TemplateTool, marker: DataMarker) -> TemplateTool:
    return {
        **definition,
        "function": {key: marker.mark_json(value) for key, value in definition["function"].items()},
    }


def with_cached_json(definition: TemplateTool) -> TemplateTool:
    """The definition with the objects that templates write as JSON: itself, its function and the
    parameters."""
    function = definition["function"]
    cached = JsonDict({**function, "parameters": JsonDict(function["parameters"])})
    return JsonDict({**definition, "function": cached})

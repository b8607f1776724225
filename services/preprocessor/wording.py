"""Parts of a conversation that no chat template knows, as fixed text. What is written here is seen by models, and a
change breaks every cached prefix.
"""

import json
from collections.abc import Iterable
from typing import Any

from schemas.conversation import Call, Media, Result, Text, ToolReference, ToolSpec
from services.preprocessor.template import Tool

JOIN = "\n"
"""Between the text blocks of one message, as in the other servers of the field."""
ERROR_PREFIX = "[error] "
_UNPARSED = "__unparsed"
_GRAMMARS = {"lark": "Lark grammar", "regex": "regular expression"}
_CUSTOM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as plain text."}},
    "required": ["input"],
}


def tool_name(name: str, namespace: str | None) -> str:
    """The one name under which the model knows a tool."""
    return f"{namespace}__{name}" if namespace else name


def tool_definition(tool: ToolSpec) -> Tool:
    """A tool as chat templates read it. A freeform tool becomes a function with one string, `input`; the grammar which
    that must keep to, if it has one, stands at the end of its description."""
    schema = tool.schema or (_CUSTOM_SCHEMA if tool.kind == "custom" else {"type": "object", "properties": {}})
    function = {
        "name": tool_name(tool.name, tool.namespace),
        "description": _description(tool),
        "parameters": schema,
    }
    return {"type": "function", "function": function}


def list_tools(tools: Iterable[ToolSpec]) -> list[Tool]:
    """The tools at the front of the prompt: a deferred one is told of by the result that loads it."""
    return [tool_definition(tool) for tool in tools if not tool.deferred]


def _description(tool: ToolSpec) -> str:
    grammar = tool.grammar
    if grammar is None:
        return tool.description
    kind = _GRAMMARS.get(grammar.syntax, grammar.syntax)
    form = f"`input` must match this {kind}:\n{grammar.definition}"
    return f"{tool.description}\n\n{form}" if tool.description else form


def arguments_of(call: Call) -> dict[str, Any]:
    """A call's arguments as an object, so that a session reads the same whatever its client's spelling of JSON.

    A freeform call's text is its `input`; text that is no JSON object is kept whole under one name.
    """
    try:
        value = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if call.kind == "custom" and not (isinstance(value, dict) and value.keys() == {"input"}):
        return {"input": call.arguments}
    return value if isinstance(value, dict) else {_UNPARSED: call.arguments}


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A call where neither the template nor a parser family has a form: the one most widely trained."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def instruction_text(text: str) -> str:
    """An instruction inside the conversation, for templates that have no place for one.

    The marks are those in which Claude Code wraps the same texts for models without mid-conversation instructions.
    """
    return f"<system-reminder>\n{text}\n</system-reminder>"


def response_text(text: str) -> str:
    """A result for templates that have no role for one."""
    return f"<tool_response>\n{text}\n</tool_response>"


def media_note(media: Media) -> str:
    """What stands in for something that this model cannot see."""
    title = f' "{media.title}"' if media.title else ""
    facts = ", ".join(fact for fact in (media.media_type, _size(media.size_bytes)) if fact)
    return f"[{media.kind}{title}{': ' + facts if facts else ''}; not shown to this model]"


def result_text(result: Result, tools: dict[str, ToolSpec]) -> str:
    """A tool's answer as text. A tool that it loads is told of here, in the form of the tool list."""
    pieces = []
    for part in result.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, Media):
            pieces.append(media_note(part))
        else:
            pieces.append(_reference_text(part, tools))
    return (ERROR_PREFIX if result.is_error else "") + JOIN.join(pieces)


def _reference_text(reference: ToolReference, tools: dict[str, ToolSpec]) -> str:
    tool = tools.get(reference.name)
    if tool is None:
        return f"[tool: {reference.name}]"
    return json.dumps(tool_definition(tool), ensure_ascii=False)


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return ""
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    if size_bytes < 1024 * 1024:
        return f"{size_bytes / 1024:.0f} KB"
    return f"{size_bytes / (1024 * 1024):.1f} MB"

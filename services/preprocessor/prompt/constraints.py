"""Resolves what a request demands of the output: a forced call, allowed tools, an output format. Pure.

A format (`response_format`, `text.format`) is enforced by the engine where no tool may be called. A model with tools
cannot be constrained so: its first token would belong to the answer, and an agent that sends a format with every
request (Codex' `--output-schema`) would never get a call. An instruction describes the format to such a model, the same
in every turn of the session.
"""

import json

from msgspec.structs import replace

from schemas.conversation import Conversation, OutputFormat, Text
from schemas.errors import Invalid
from services.families import Family
from services.templates.tools import tool_name


def forced_call(conversation: Conversation, family: Family) -> str | None:
    """The opening of the call with which the model's turn must begin; None where it is free. Raises Invalid."""
    choice = conversation.tool_choice
    allowed = allowed_tools(conversation)
    if choice.mode not in ("any", "tool"):
        return None
    if not conversation.tools:
        raise Invalid("tool_choice may only be specified while providing tools", param="tool_choice")
    if choice.mode == "any":
        return family.style.call_prefix(allowed[0] if len(allowed) == 1 else None)
    named = [tool for tool in conversation.tools if choice.name in (tool.name, tool_name(tool.name, tool.namespace))]
    # A bare name means the tool without a namespace, if there is one.
    named.sort(key=lambda tool: tool.namespace is not None)
    chosen = next((tool for tool in named if choice.namespace in (None, tool.namespace)), None)
    if chosen is None:
        name = tool_name(choice.name or "", choice.namespace)
        raise Invalid(f"tool_choice names a tool that is not among the tools: {name}", param="tool_choice")
    return family.style.call_prefix(tool_name(chosen.name, chosen.namespace))


def allowed_tools(conversation: Conversation) -> list[str]:
    """The only tools that may be called, under the names that the model sees; empty where all may.

    Raises Invalid where the client allows a tool that it does not offer.
    """
    known: dict[str, list[str]] = {}
    for tool in conversation.tools if conversation.tool_choice.allowed else ():
        rendered = tool_name(tool.name, tool.namespace)
        for name in {tool.name, rendered}:
            known.setdefault(name, []).append(rendered)
    for name in conversation.tool_choice.allowed:
        if name not in known:
            raise Invalid(f"tool_choice allows a tool that is not among the tools: {name}", param="tool_choice")
    return list(dict.fromkeys(rendered for name in conversation.tool_choice.allowed for rendered in known[name]))


def enforced_format(conversation: Conversation) -> OutputFormat | None:
    """The format that the engine enforces; None where the output is free."""
    callable_tools = conversation.tools and conversation.tool_choice.mode != "none"
    return None if callable_tools else conversation.format


def with_format_instruction(conversation: Conversation) -> Conversation:
    """The conversation with its format among the instructions, if it has tools."""
    output = conversation.format
    if output is None or not conversation.tools:
        return conversation
    if output.schema is None:
        text = "Your final answer, when you call no more tools, must be one JSON object and nothing else."
    else:
        schema = json.dumps(output.schema, ensure_ascii=False)
        text = "Your final answer, when you call no more tools, must be JSON that fits this schema, and nothing else:\n"
        text += schema
    return replace(conversation, system=[*conversation.system, Text(text)])

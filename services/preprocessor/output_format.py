"""Decides how a conversation's output format is kept: the engine enforces it, or an instruction describes it. Pure.

A format (`response_format`, `text.format`) is enforced by the engine where no tool may be called. A model with tools
cannot be constrained in this way: its first token would belong to the answer, and an agent that sends a format with
every request (Codex' `--output-schema`) would never get a call. An instruction describes the format to such a model,
the same in every turn of the session.
"""

import json

from msgspec.structs import replace

from schemas.conversation import Conversation, OutputFormat, Text


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

"""How an answer comes to have the form that its client asked for (`response_format`, `text.format`). Pure.

Without tools the engine holds the whole output to it. A model that may call tools cannot be held so: its first token
would already be the answer's, and an agent that asks for a form with every request (Codex' `--output-schema`) would
never get a call. It is told of the form instead, in the same words in every turn of the session.
"""

import json

from msgspec.structs import replace

from schemas.conversation import Conversation, OutputFormat, Text


def held_form(conversation: Conversation) -> OutputFormat | None:
    """The form that the engine is to hold the output to; None where it is free."""
    callable_tools = conversation.tools and conversation.tool_choice.mode != "none"
    return None if callable_tools else conversation.format


def with_form(conversation: Conversation) -> Conversation:
    """The conversation with the form among its instructions, where there are tools."""
    form = conversation.format
    if form is None or not conversation.tools:
        return conversation
    return replace(conversation, system=[*conversation.system, Text(_instruction(form))])


def _instruction(form: OutputFormat) -> str:
    if form.schema is None:
        return "Your final answer, when you call no more tools, must be one JSON object and nothing else."
    schema = json.dumps(form.schema, ensure_ascii=False)
    return (
        "Your final answer, when you call no more tools, must be JSON that fits this schema, and nothing else:\n"
        + schema
    )

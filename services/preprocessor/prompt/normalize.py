"""Normalizes a conversation for its prompt: without billing headers, with an instruction for the
format of the answer, and with its calls and results in pairs. Pure.

A model with tools cannot be constrained to a format: its first token would belong to the answer,
and an agent that sends a format with every request (Codex' `--output-schema`) would never get a
call. An instruction describes the format to such a model, the same in every turn of the session.
"""

import json

from msgspec.structs import replace

from schemas.conversation import Conversation, Text
from services.preprocessor.prompt.call_pairs import join_pairs
from services.preprocessor.prompt.preamble import strip_preamble

_ANY_OBJECT = (
    "Your final answer, when you call no more tools, must be one JSON object and nothing else."
)
_SCHEMA_FOLLOWS = (
    "Your final answer, when you call no more tools, must be JSON that fits this schema, "
    "and nothing else:\n"
)


def normalize(conversation: Conversation, *, preamble: bool = True) -> Conversation:
    """The conversation that the model is to see. `preamble`: billing headers are removed."""
    if preamble:
        conversation = strip_preamble(conversation)
    conversation = with_format_instruction(conversation)
    return replace(conversation, messages=join_pairs(conversation.messages))


def with_format_instruction(conversation: Conversation) -> Conversation:
    """The conversation with its format among the instructions, if it has tools."""
    output = conversation.format
    if output is None or not conversation.tools:
        return conversation
    text = _ANY_OBJECT
    if output.schema is not None:
        text = _SCHEMA_FOLLOWS + json.dumps(output.schema, ensure_ascii=False)
    return replace(conversation, system=[*conversation.system, Text(text)])

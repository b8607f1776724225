"""Output formats: enforced by the engine, or described to the model."""

import json
from typing import Any

import pytest

from schemas.conversation import Conversation, Message, OutputFormat, Text, ToolChoice, ToolSpec
from services.preprocessor.render import enforced_format
from services.preprocessor.strip import with_format_instruction

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"größe": {"type": "integer"}},
    "required": ["größe"],
}
FORM = OutputFormat("json_schema", SCHEMA)
TOOLS = [ToolSpec("ls")]


def asked(
    form: OutputFormat | None = FORM, tools: list[ToolSpec] | None = None, **choice: Any
) -> Conversation:
    messages = [Message("user", [Text("How large?")])]
    return Conversation(
        "m",
        messages,
        system=[Text("Be brief.")],
        tools=tools or [],
        tool_choice=ToolChoice(**choice),
        format=form,
    )


def test_format_without_callable_tools_is_enforced_with_the_same_prompt() -> None:
    assert enforced_format(asked()) == FORM
    assert with_format_instruction(asked()) == asked()
    none = asked(tools=TOOLS, mode="none")
    assert enforced_format(none) == FORM
    same = with_format_instruction(asked(tools=TOOLS))
    assert with_format_instruction(none).system == same.system


@pytest.mark.parametrize("mode", ["auto", "any", "tool"])
def test_format_beside_callable_tools_is_an_instruction(mode: str) -> None:
    conversation = asked(tools=TOOLS, mode=mode, name="ls")
    assert enforced_format(conversation) is None
    instructions = with_format_instruction(conversation).system
    assert instructions[0] == Text("Be brief.")
    assert json.loads(instructions[1].text.partition("\n")[2]) == SCHEMA
    assert "größe" in instructions[1].text

"""The form of an answer, held by the engine or told to the model."""

import json
from typing import Any

import pytest

from schemas.conversation import Conversation, Message, OutputFormat, Text, ToolChoice, ToolSpec
from services.preprocessor.render import enforced_format
from services.preprocessor.strip import strip

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}
FORM = OutputFormat("json_schema", SCHEMA)
TOOLS = [ToolSpec("ls")]


def asked(form: OutputFormat | None = FORM, tools: list[ToolSpec] | None = None, **choice: Any) -> Conversation:
    turns = [Message("user", [Text("How large?")])]
    return Conversation(
        "m", turns, system=[Text("Be brief.")], tools=tools or [], tool_choice=ToolChoice(**choice), format=form
    )


def stripped(conversation: Conversation) -> Conversation:
    return strip(conversation, headers=False)[0]


def test_without_tools_the_engine_holds_it_and_the_prompt_says_nothing() -> None:
    assert enforced_format(asked()) == FORM
    assert stripped(asked()) == asked()


@pytest.mark.parametrize("mode", ["auto", "any", "tool"])
def test_a_model_that_may_call_is_told(mode: str) -> None:
    conversation = asked(tools=TOOLS, mode=mode, name="ls")
    assert enforced_format(conversation) is None
    told = stripped(conversation).system
    assert told[0] == Text("Be brief.")
    assert json.loads(told[1].text.partition("\n")[2]) == SCHEMA
    assert "größe" in told[1].text


def test_a_model_that_may_not_call_is_held_and_reads_the_same_prompt() -> None:
    conversation = asked(tools=TOOLS, mode="none")
    assert enforced_format(conversation) == FORM
    assert stripped(conversation).system == stripped(asked(tools=TOOLS)).system


def test_any_object() -> None:
    told = stripped(asked(OutputFormat("json_object"), TOOLS)).system[1].text
    assert "one JSON object" in told
    assert "schema" not in told


def test_no_form_no_words() -> None:
    assert stripped(asked(None, TOOLS)) == asked(None, TOOLS)
    assert enforced_format(asked(None, TOOLS)) is None

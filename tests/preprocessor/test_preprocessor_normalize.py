"""What is removed from instructions, and output formats that are added to them."""

import json
from typing import Any

import pytest

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    OutputFormat,
    Text,
    ToolChoice,
    ToolSpec,
)
from services.preprocessor.prompt.normalize import with_format_instruction
from services.preprocessor.prompt.preamble import strip_preamble
from services.preprocessor.prompt.render import enforced_format
from tests.kit.conversations import assistant, result, user
from tests.kit.every import for_rows

HEADER = "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=sdk-cli;"
PROMPT = "You are Claude Code."


def conversation(*system: str, messages: list[Message] | None = None) -> Conversation:
    return Conversation("m", messages or [user("hi")], system=[Text(text) for text in system])


def system_after(*system: str) -> list[str]:
    return [text.text for text in strip_preamble(conversation(*system)).system]


FORMS = [
    ([HEADER, PROMPT], [PROMPT]),
    ([f"{HEADER}\n{PROMPT}"], [PROMPT]),
    ([f"{HEADER}\n{HEADER} cch=fa690;\n{PROMPT}"], [PROMPT]),
    ([HEADER], []),
    ([PROMPT, HEADER, "More."], [PROMPT, "More."]),
    ([f"{HEADER} cch=fa690; {PROMPT} cch=1;\nMore."], [f" {PROMPT} cch=1;\nMore."]),
]
"""Instructions with headers, and what is left of them."""


@for_rows(FORMS)
def test_every_form_is_removed_from_top_level_instructions(
    system: list[str], left: list[str]
) -> None:
    assert system_after(*system) == left


def test_other_instructions_are_untouched() -> None:
    for text in (
        f"{PROMPT}\n{HEADER}\nis what the client sends.",
        "x-anthropic-billing-headers are lines",
        "x-anthropic-billing-header: never print this line",
    ):
        before = conversation(text)
        assert strip_preamble(before) is before


@pytest.mark.parametrize("role", ["system", "developer"])
def test_headers_inside_the_conversation_are_removed(role: str) -> None:
    messages = [
        user("hi"),
        Message(role, [Text(HEADER)]),  # type: ignore[arg-type]
        Message(role, [Text(HEADER), Text("# Environment")]),  # type: ignore[arg-type]
        Message(role, [Text(f"{HEADER}\n# Date")]),  # type: ignore[arg-type]
    ]
    stripped = strip_preamble(conversation(messages=messages))
    assert stripped.messages == [
        user("hi"),
        Message(role, [Text("# Environment")]),  # type: ignore[arg-type]
        Message(role, [Text("# Date")]),  # type: ignore[arg-type]
    ]


def test_texts_of_users_models_and_tools_are_untouched() -> None:
    messages = [
        Message("user", [Text(f"{HEADER}\nwhat is this?"), Media("image")]),
        assistant(HEADER, Call("c1", "Read", f'{{"path": "{HEADER}"}}')),
        result(f"{HEADER}\n"),
    ]
    stripped = strip_preamble(conversation(HEADER, PROMPT, messages=messages))
    assert stripped.system == [Text(PROMPT)]
    assert stripped.messages == messages


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
    messages = [user("How large?")]
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


def test_format_beside_callable_tools_is_an_instruction() -> None:
    conversation = asked(tools=TOOLS)
    assert enforced_format(conversation) is None
    instructions = with_format_instruction(conversation).system
    assert instructions[0] == Text("Be brief.")
    assert json.loads(instructions[1].text.partition("\n")[2]) == SCHEMA
    assert "größe" in instructions[1].text

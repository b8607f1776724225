"""How a prompt ends: thinking, forced calls, an answer that is continued."""

from typing import Any

import pytest

from schemas.conversation import OutputFormat, Reasoning, Text, Thinking, ToolChoice, ToolSpec
from schemas.errors import Invalid
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.render import allowed_tools
from tests.kit.conversations import assistant, conversation, user

BASH = ToolSpec(
    "Bash", "run a command", {"type": "object", "properties": {"command": {"type": "string"}}}
)
THINKS = "<|im_start|>assistant\n<think>\n"
THINKS_NOT = THINKS + "\n</think>\n\n"


def choose(mode: str, name: str | None = None) -> dict[str, Any]:
    return {"tools": [BASH], "tool_choice": ToolChoice(mode, name)}  # type: ignore[arg-type]


ENDS: list[tuple[dict[str, Any], str, str]] = [
    ({}, THINKS, ""),
    ({"thinking": Thinking("disabled")}, THINKS_NOT, ""),
    ({"format": OutputFormat("json_schema", schema={})}, THINKS_NOT, ""),
    (choose("none"), THINKS, ""),
    (choose("any"), THINKS_NOT, "<tool_call>\n<function="),
    (
        {**choose("tool", "Bash"), "thinking": Thinking("enabled")},
        THINKS_NOT,
        "<tool_call>\n<function=Bash>\n",
    ),
]
"""What a request asks for, how its prompt ends, and what of the answer the prompt has."""


@pytest.mark.parametrize(("more", "end", "prefix"), ENDS)
def test_prompt_ends_as_the_request_asks(
    setup: ModelSetup, more: dict[str, Any], end: str, prefix: str
) -> None:
    prompt = assemble(conversation(**more), setup)
    question = "<|im_start|>user\nHi.<|im_end|>\n"
    assert prompt.text.endswith(question + end + prefix)
    assert more or prompt.text == question + end
    assert setup.tokenizer.decode(prompt.ids) == prompt.text
    assert prompt.rendered.prefix == prefix
    assert prompt.rendered.in_reasoning == (end == THINKS)
    assert bool(prompt.tools) == ("tools" in more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tool_choice": ToolChoice("any")}, "while providing tools"),
        (choose("tool", "Grep"), "not among the tools: Grep"),
        ({"tools": [BASH], "tool_choice": ToolChoice(allowed=["wipe"])}, "wipe"),
    ],
)
def test_impossible_choice_is_refused(
    setup: ModelSetup, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        assemble(conversation(**more), setup)
    assert caught.value.info.param == "tool_choice"


@pytest.mark.parametrize("text", ["The answer is \n", "a<|im_end|>b", "</think>"])
def test_last_text_of_the_assistant_is_continued(setup: ModelSetup, text: str) -> None:
    prompt = assemble(conversation(user("hi"), assistant(Reasoning("r"), Text(text))), setup)
    assert prompt.text.endswith("<|im_start|>assistant\n<think>\nr\n</think>\n\n" + text)
    assert not prompt.rendered.in_reasoning


OWN = ToolSpec("read", namespace="files")
OTHER = ToolSpec("read", namespace="mail")
BARE = ToolSpec("read")


def test_namespaced_and_allowed_tools_are_forced(setup: ModelSetup) -> None:
    def forced(choice: ToolChoice, *tools: ToolSpec) -> str:
        asked = conversation(tools=list(tools), tool_choice=choice)
        prefix = assemble(asked, setup).rendered.prefix
        return prefix.removeprefix("<tool_call>\n<function=").removesuffix(">\n")

    for choice, tools, name in (
        (ToolChoice("tool", "read", namespace="mail"), (OWN, OTHER, BARE), "mail__read"),
        (ToolChoice("tool", "read"), (OWN, OTHER, BARE), "read"),
        (ToolChoice("tool", "files__read"), (OWN, OTHER, BARE), "files__read"),
        (ToolChoice("tool", "read"), (OWN,), "files__read"),
        (ToolChoice("any", allowed=["Bash"]), (BASH, OWN), "Bash"),
        (ToolChoice("any", allowed=["Bash", "read"]), (BASH, OWN), ""),
    ):
        assert forced(choice, *tools) == name
    with pytest.raises(Invalid, match="calendar__read"):
        forced(ToolChoice("tool", "read", namespace="calendar"), OWN, OTHER, BARE)
    allowed = conversation(tools=[OWN, OTHER, BASH], tool_choice=ToolChoice(allowed=["read"]))
    assert allowed_tools(allowed) == ["files__read", "mail__read"]

"""The prompt of a conversation: its end, tools, sampling and limits. Raw prompts."""

from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    RawPrompt,
    Reasoning,
    Result,
    Text,
    Thinking,
    ToolSpec,
)
from schemas.errors import Invalid
from schemas.token_ids import pack_ids
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from tests.kit.bodies import MESSAGES
from tests.kit.conversations import assistant, conversation, result, user
from tests.kit.every import Cases
from tests.kit.model_output import written_call

BASH = ToolSpec(
    "Bash", "run a command", {"type": "object", "properties": {"command": {"type": "string"}}}
)
CALL = Call("c1", "Bash", '{"command": "ls"}')
HEADER = "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=cli;"


def test_preamble_is_stripped_by_default(setup: ModelSetup) -> None:
    with_header = conversation(system=[Text(HEADER), Text("Be brief.")])
    prompt = assemble(with_header, setup)
    assert prompt.ids == assemble(conversation(system=[Text("Be brief.")]), setup).ids
    left = assemble(with_header, changed(setup, strip_preamble=False))
    assert HEADER in left.text


def test_parser_gets_tools_as_the_model_sees_them(setup: ModelSetup) -> None:
    tools = [
        ToolSpec("open", namespace="browser"),
        ToolSpec("apply_patch", kind="custom"),
        replace(BASH, deferred=True),
    ]
    parser_tools = assemble(conversation(tools=tools), setup).tools
    assert [tool.name for tool in parser_tools] == ["browser__open", "apply_patch", "Bash"]
    assert parser_tools[1].schema["required"] == ["input"]


def test_string_and_its_single_block_have_the_same_tokens(setup: ModelSetup) -> None:
    """Claude Code sends a message as a list of blocks while it is the last, and as a string
    later."""

    def ids(wrap: Callable[[str], object]) -> list[int]:
        call = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {}}
        done = {"type": "tool_result", "tool_use_id": "c1", "content": wrap(" a\n\nb \n")}
        messages = [
            {"role": "user", "content": wrap("\n Fix it. ")},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [done]},
            {"role": "system", "content": wrap("note\n")},
        ]
        body = {"model": "m", "max_tokens": 8, "system": wrap(" Be brief.\n"), "messages": messages}
        request = MESSAGES.parse(body)
        return list(assemble(request.conversation, setup).ids)

    assert ids(lambda text: text) == ids(lambda text: [{"type": "text", "text": text}])


ANSWERS: list[tuple[str, str, list[Part]]] = [
    ("enabled", "Hm.\n</think>\n\nYes.", [Reasoning("Hm."), Text("Yes.")]),
    ("disabled", "Done. ", [Text("Done. ")]),
    (
        "enabled",
        "<think> a\n</think>\n\n" + written_call("Bash", command="ls"),
        [Reasoning("<think> a"), CALL],
    ),
    (
        "enabled",
        "\n</think>\n\nOne\n\n" + "\n".join(2 * [written_call("Bash")]),
        [Text("One"), Call("c2", "Bash", "{}"), Call("c3", "Bash", "{}")],
    ),
]
"""Whether the model thinks, what it writes, and the parts that clients send back."""


def test_each_prompt_begins_with_the_last_one_and_its_answer(setup: ModelSetup) -> None:
    messages, expected = [user("begin")], ""
    for thinking, answer, parts in [*ANSWERS, *ANSWERS[:1]]:
        more: dict[str, Any] = {"system": [Text("Be brief.")], "tools": [BASH]}
        more["thinking"] = Thinking(thinking)  # type: ignore[arg-type]
        prompt = assemble(conversation(*messages, **more), setup)
        assert prompt.text.startswith(expected)
        expected = f"{prompt.text}{answer}<|im_end|>\n"
        results = [Result(part.call_id, [Text("done")]) for part in parts if isinstance(part, Call)]
        messages.append(Message("assistant", parts))
        messages.append(Message("tool", list(results)) if results else user("go on"))
        messages.append(Message("system", [Text("The date has changed.")]))


def raw(prompt: RawPrompt) -> Conversation:
    """Of /v1/completions."""
    return Conversation("m", [], prompt=prompt)


def test_raw_text_and_ids_are_encoded_unchanged(setup: ModelSetup, cases: Cases) -> None:
    text = HEADER + "\n  Once <|im_start|> upon\n"
    prompt = assemble(raw(RawPrompt(text)), setup)
    assert list(prompt.ids) == setup.tokenizer.encode(text, True)
    rendered = prompt.rendered
    assert (rendered.in_reasoning, rendered.prefix, prompt.tools) == (False, "", [])
    ids = [5, 1, 0, setup.tokenizer.vocab_size - 1]
    assert list(assemble(raw(RawPrompt(token_ids=pack_ids(ids))), setup).ids) == ids
    for invalid in (
        RawPrompt(),
        RawPrompt(token_ids=b"abc"),
        RawPrompt(token_ids=pack_ids([10**6])),
    ):
        with cases.case(invalid):
            with pytest.raises(Invalid) as refused:
                assemble(raw(invalid), setup)
            assert refused.value.info.param == "prompt"


def test_dropped_reasoning_is_not_in_the_prompt(setup: ModelSetup) -> None:
    """The reasoning of the present tool loop stays: it explains its calls."""
    messages = [
        user("one"),
        assistant(Reasoning("FIRST"), CALL),
        result("r"),
        assistant(Reasoning("SECOND"), Text("t")),
        user("two"),
        assistant(Reasoning("THIRD"), replace(CALL, call_id="c2")),
        result("r", "c2"),
    ]
    default, keep, drop = (
        assemble(conversation(*messages, tools=[BASH], thinking=Thinking(history=kept)), setup).text
        for kept in ("default", "keep", "drop")
    )
    marks = ["FIRST", "SECOND", "THIRD"]
    assert [mark for mark in marks if mark in drop] == ["THIRD"]
    assert [mark for mark in marks if mark in keep] == marks
    assert keep == default

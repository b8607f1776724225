"""Tests that content parts of types that an API lacks are left out of every request of a session, and
named in the notes."""

import json
import random
from typing import Any

import pytest

from schemas.conversation import Message, Text
from tests.kit.bodies import (
    CHAT,
    CONVERSING,
    MESSAGES,
    RESPONSES,
    USER,
    Api,
    Json,
    assistant,
    block,
    chat_call,
    chat_result,
    function_call,
    function_output,
    message,
    text,
    tool_result,
    tool_use,
    user,
)
from tests.kit.every import for_each

PARTS = (text("One."), text("Two."))
SPELLED = '{"at": 1.0, "b": [ 1e2 ]}'
TYPES = ("encrypted_content", "input_hologram", "x", "")


def input_texts() -> list[Json]:
    return [block("input_text", text=part["text"]) for part in PARTS]


def sessions(api: Api) -> list[list[Any]]:
    """Conversations with a list of parts in each place that this API has for one."""
    if api is MESSAGES:
        document = block("document", source=block("content", content=[*PARTS]))
        search = block("search_result", content=[*PARTS], source="s", title="t")
        use = {**tool_use(), "input": json.loads(SPELLED)}
        result = tool_result(content=[*PARTS, search, document])
        system = message("system", *PARTS)
        return [[user(*PARTS, document), system, assistant(text("A"), use), user(result, *PARTS)]]
    if api is CHAT:
        call = message("assistant", *PARTS, tool_calls=[chat_call(arguments=SPELLED)])
        return [[message("system", *PARTS), user(*PARTS), call, chat_result(content=[*PARTS])]]
    thought = block("reasoning", summary=[block("summary_text", text="S")], content=[])
    thought["content"] = [block("reasoning_text", text="T")]
    custom = block("custom_tool_call", call_id="c", name="run", input="x")
    return [
        [
            message("developer", *input_texts()),
            user(*input_texts()),
            thought,
            assistant(block("output_text", text="A")),
            function_call(arguments=SPELLED),
            custom,
            function_output(output=input_texts()),
            block("custom_tool_call_output", call_id="c", output=input_texts()),
        ]
    ]


def with_unknown(value: Any, draw: random.Random, added: list[str]) -> Any:
    """The conversation with unknown parts at random places of its lists of parts."""
    if isinstance(value, dict):
        return {name: with_unknown(member, draw, added) for name, member in value.items()}
    if not isinstance(value, list):
        return value
    changed = [with_unknown(item, draw, added) for item in value]
    if any(isinstance(item, dict) and "text" in item for item in value):
        for _ in range(draw.randrange(3)):
            kind = draw.choice(TYPES)
            part = block(kind, encrypted_content="gAAAA", text=7, content=[block("text")])
            changed.insert(draw.randrange(len(changed) + 1), part)
            added.append(kind)
    return changed


@for_each(CONVERSING)
def test_unknown_parts_are_left_out_and_named(api: Api) -> None:
    draw = random.Random(api.name)
    for session in sessions(api):
        plain = api.ask(*session)
        assert plain.notes == []
        for _ in range(200):
            added: list[str] = []
            changed = api.ask(*with_unknown(session, draw, added))
            assert sorted(changed.notes) == sorted(added)
            assert changed.conversations == plain.conversations


def test_arguments_keep_their_spelling_beside_an_unknown_part() -> None:
    body = json.dumps(MESSAGES.body(user(block("poem")), assistant({**tool_use(), "input": "§"})))
    asked = MESSAGES.parse(body.replace('"\\u00a7"', SPELLED).encode())
    (call,) = asked.conversation.messages[1].parts
    assert (call.arguments, asked.notes) == (SPELLED, ["poem"])


def test_unknown_part_of_the_system_instructions_is_left_out() -> None:
    system = [text("A"), block("poem"), text("B")]
    asked = MESSAGES.ask(USER, system=system)
    assert (asked.conversation.system, asked.notes) == ([Text("A"), Text("B")], ["poem"])
    known = MESSAGES.refusal(USER, system=[block("poem"), block("image")])
    assert known.message.startswith("system.1: Input tag 'image'")


@pytest.mark.parametrize("api", CONVERSING)
def test_errors_beside_an_unknown_part_name_the_place_in_the_request(api: Api) -> None:
    faulty = block("input_text") if api is RESPONSES else block("text")
    refused = api.refusal(user(block("poem"), faulty))
    assert refused.param is not None
    assert refused.param.replace("[", ".").replace("]", "").endswith("0.content.1.text")
    for part in ({"text": "A"}, {"type": 5}, 5):
        assert api.refusal(user(block("poem"), part)).message


def test_screen_in_an_unknown_form_is_left_out() -> None:
    asked = RESPONSES.ask(USER, block("computer_call_output", call_id="c", output=block("film")))
    assert (asked.conversation.messages, asked.notes) == (RESPONSES.read(USER).messages, ["film"])
    for output in (5, block("computer_screenshot", image_url=5)):
        broken = block("computer_call_output", call_id="c", output=output)
        assert RESPONSES.refusal(USER, broken).param


def test_sub_agent_gets_its_task_in_every_form() -> None:
    head = "Message Type: NEW_TASK\nTask name: /root/count\nSender: /root\nPayload:\n"
    task = "Count the files."
    ciphertext = "gAAAAABo" + "Zm9yZXRydW5l" * 10 + "=="
    encrypted = block("encrypted_content", encrypted_content=task)
    forms: list[tuple[Any, list[str], list[str]]] = [
        ([block("input_text", text=head + task)], [head + task], []),
        ([block("input_text", text=head), encrypted], [head, task], []),
        ([encrypted, block("poem")], [task], ["poem"]),
        (task, [task], []),
        ([block("encrypted_content", encrypted_content=ciphertext)], [], ["encrypted_content"]),
    ]
    for content, texts, notes in forms:
        item = block("agent_message", author="/root", recipient="/root/count", content=content)
        asked = RESPONSES.ask(USER, item)
        parts = [Text("[message from /root to /root/count]"), *map(Text, texts)]
        assert asked.conversation.messages[1:] == [Message("user", [*parts])]
        assert asked.notes == notes

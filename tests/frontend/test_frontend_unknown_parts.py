"""Tests that content parts of types that an API lacks are left out of every request of a session, and
named in the notes."""

import json
import random
from typing import Any

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
INPUTS = (block("input_text", text="One."), block("input_text", text="Two."))
SPELLED = '{"at": 1.0, "b": [ 1e2 ]}'
TYPES = ("encrypted_content", "input_hologram", "x", "")
DOCUMENT = block("document", source=block("content", content=[*PARTS]))
SEARCH = block("search_result", content=[*PARTS], source="s", title="t")
SESSIONS: dict[Api, list[Json]] = {
    MESSAGES: [
        user(*PARTS, DOCUMENT),
        message("system", *PARTS),
        assistant(text("A"), tool_use()),
        user(tool_result(content=[*PARTS, SEARCH, DOCUMENT]), *PARTS),
    ],
    CHAT: [
        message("system", *PARTS),
        user(*PARTS),
        message("assistant", *PARTS, tool_calls=[chat_call(arguments=SPELLED)]),
        chat_result(content=[*PARTS]),
    ],
    RESPONSES: [
        message("developer", *INPUTS),
        user(*INPUTS),
        block("reasoning", summary=[], content=[block("reasoning_text", text="T")]),
        assistant(block("output_text", text="A")),
        function_call(arguments=SPELLED),
        function_output(output=[*INPUTS]),
    ],
}
"""Conversations with a list of parts in each place that the API has for one."""


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
    plain = api.ask(*SESSIONS[api])
    assert plain.notes == []
    for _ in range(50):
        added: list[str] = []
        changed = api.ask(*with_unknown(SESSIONS[api], draw, added))
        assert sorted(changed.notes) == sorted(added)
        assert changed.conversations == plain.conversations


def test_rest_of_the_request_is_unchanged_beside_an_unknown_part() -> None:
    system = [text("A"), block("poem"), text("B")]
    body = MESSAGES.body(USER, assistant(tool_use(input="§")), system=system)
    asked = MESSAGES.parse(json.dumps(body).replace('"\\u00a7"', SPELLED).encode())
    (call,) = asked.conversation.messages[1].parts
    assert (call.arguments, asked.notes) == (SPELLED, ["poem"])
    assert asked.conversation.system == [Text("A"), Text("B")]


@for_each(CONVERSING)
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

"""Tests content parts of unknown types: they are left out and named."""

import json
from typing import Any

from schemas.conversation import Message, Text
from services.frontend.apis.shared.content import base64_size
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

SPELLED = '{"at": 1.0, "b": [ 1e2 ]}'
UNKNOWN = block("encrypted_content", encrypted_content="gAAAA")
NAMELESS = block("", text=7, content=[block("text")])


def session(api: Api, *odd: Json) -> list[Json]:
    """A conversation with further parts in each place that the API has for parts."""
    if api is MESSAGES:
        return [
            user(*odd, text("One.")),
            message("system", text("One."), *odd),
            assistant(text("A"), tool_use()),
            user(tool_result(content=[text("One."), *odd])),
        ]
    if api is CHAT:
        return [
            message("system", text("One."), *odd),
            user(*odd, text("One.")),
            message("assistant", text("One."), *odd, tool_calls=[chat_call()]),
            chat_result(content=[*odd, text("One.")]),
        ]
    return [
        user(*odd, block("input_text", text="One.")),
        block("reasoning", summary=[], content=[block("reasoning_text", text="T"), *odd]),
        function_call(),
        function_output(output=[block("input_text", text="One."), *odd]),
    ]


@for_each(CONVERSING)
def test_unknown_parts_are_left_out_and_named(api: Api) -> None:
    plain = api.ask(*session(api))
    changed = api.ask(*session(api, UNKNOWN, NAMELESS))
    assert plain.notes == []
    assert set(changed.notes) == {"encrypted_content", ""}
    assert changed.notes.count("") == len(changed.notes) // 2 >= 3
    assert changed.conversations == plain.conversations


@for_each(CONVERSING)
def test_question_of_unknown_parts_only_is_refused(api: Api) -> None:
    refused = api.refusal(user(block("poem"), block("verse")))
    assert "poem" in refused.message
    assert "verse" not in refused.message
    later = [user(block("poem")), message("assistant", "A"), USER]
    assert api.ask(*later).notes == ["poem"], "in the history it stays without effect"


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
        assert api.refusal(user(block("poem"), part)).message, part


def test_sub_agent_gets_its_task_in_every_form() -> None:
    head = "Message Type: NEW_TASK\nTask name: /root/count\nSender: /root\nPayload:\n"
    task = "Count the files."
    ciphertext = "gAAAAABo" + "Zm9yZXRydW5l" * 10 + "=="
    encrypted = block("encrypted_content", encrypted_content=task)
    forms: list[tuple[Any, list[str], list[str]]] = [
        ([block("input_text", text=head + task)], [head + task], []),
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


def test_size_of_base64_is_computed_without_decoding() -> None:
    for data, size in (("AAAA", 3), ("AA==", 1), ("A===", None), ("A=AA", None), ("ÄÄÄÄ", None)):
        assert base64_size(data) == size, data
        assert base64_size(data.encode()) == size, data

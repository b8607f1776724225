"""Tests how `messages` of Chat Completions become messages of the conversation."""

import json
from typing import Any

from schemas.conversation import Call, Media, Message, Part, Reasoning, Result, Text
from services.frontend.apis.chat.request import Chat
from services.frontend.content.pdf_document import make_document
from tests.kit.bodies import (
    CHAT,
    USER,
    Json,
    assistant,
    block,
    chat,
    chat_call,
    chat_result,
    message,
    text,
    user,
)
from tests.kit.every import for_rows
from tests.kit.frontend import messages_as_notes

CALL = chat_call(arguments='{"at": 3.0}')
CALL_2 = chat_call("call_2")


def read_messages(*messages: Json) -> list[Message]:
    return messages_as_notes(CHAT.read(*messages))


def parts_of(content: Any = None, **fields: Any) -> list[Part]:
    """The parts of one assistant message."""
    _, read = read_messages(USER, {"role": "assistant", "content": content, **fields})
    assert read.role == "assistant"
    return read.parts


def test_messages_of_every_role_keep_their_order() -> None:
    found = read_messages(
        message("system", "be brief"),
        message("developer", text("no emojis"), name="ops"),
        user("hi", name="ann"),
        assistant("hello"),
        message("system", "now it is dark"),
        user(""),
    )
    assert found == [
        Message("system", [Text("be brief")]),
        Message("developer", [Text("no emojis")], "ops"),
        Message("user", [Text("hi")], "ann"),
        Message("assistant", [Text("hello")]),
        Message("system", [Text("now it is dark")]),
        Message("user", []),
    ]


IMAGE = {"url": "data:image/png;base64,AAAAAA==", "detail": "low"}
PDF = {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}


@for_rows(
    [
        (block("image_url", image_url=IMAGE), Media("image", media_type="image/png", size_bytes=4)),
        (block("image_url", image_url="https://x/a.png"), Media("image", url="https://x/a.png")),
        (
            block("input_audio", input_audio={"data": "AAAA", "format": "wav"}),
            Media("audio", media_type="audio/wav", size_bytes=3),
        ),
        (
            block("file", file=PDF),
            make_document("application/pdf", "AAAA", 3, "a.pdf", "Title: a.pdf\n\n"),
        ),
    ]
)
def test_media_become_parts(part: Json, media: Media) -> None:
    (read,) = read_messages(user(text("see"), part))
    assert read.parts == [Text("see"), media]
    called = assistant(None, tool_calls=[CALL])
    (_, _, answered) = read_messages(USER, called, chat_result(content=[part]))
    assert answered.parts == [Result("call_1", [media], name="look")]


def test_calls_are_paired_with_their_results() -> None:
    found = read_messages(
        USER,
        assistant("Looking.", tool_calls=[CALL, CALL_2]),
        chat_result("call_2", [text("b")]),
        chat_result("call_1", "a"),
        USER,
    )
    calls = [Call("call_1", "look", '{"at": 3.0}'), Call("call_2", "look", "{}")]
    first, second = Text("a"), Text("b")
    results: list[Part] = [
        Result("call_1", [first], name="look"),
        Result("call_2", [second], name="look"),
    ]
    assert found[1:] == [
        Message("assistant", [Text("Looking."), *calls]),
        Message("tool", results),
        Message("user", [Text("Hi.")]),
    ]


def test_arguments_keep_their_spelling() -> None:
    body = b"""{"messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[
        {"id":"a","function":{"name":"look","arguments":{"at": 1e5}}},
        {"id":"b","function":{"name":"look"}},
        {"id":"c","function":{"name":"look","arguments":"not json"}}]}]}"""
    assert CHAT.parse(body).conversation.messages[1].parts == [
        Call("a", "look", '{"at": 1e5}'),
        Call("b", "look", ""),
        Call("c", "look", "not json"),
    ]
    patch = {"name": "patch", "input": '{"input": "x"}'}
    (call,) = parts_of(tool_calls=[block("custom", id="c", custom=patch)])
    assert isinstance(call, Call)
    assert (call.kind, json.loads(call.arguments)) == ("custom", {"input": '{"input": "x"}'})


SIGNED = block("reasoning.text", text="so", signature="sig")
FOREIGN = block("reasoning.encrypted", data="foreign")
THINKING = block("thinking", thinking="so", signature="sig")


@for_rows(
    [
        ({"reasoning_content": "so"}, Reasoning("so")),
        ({"reasoning": "so", "reasoning_details": [SIGNED]}, Reasoning("so", "sig")),
        ({"reasoning_content": "so", "reasoning_details": [FOREIGN]}, Reasoning("so")),
        ({"reasoning_content": "s", "thinking_blocks": [THINKING]}, Reasoning("so", "sig")),
        ({"thinking_blocks": [block("redacted_thinking", data="blob")]}, Reasoning(None, "blob")),
    ],
)
def test_reasoning_is_read_from_any_field_and_comes_first(fields: Json, thought: Reasoning) -> None:
    assert parts_of("hello", **fields) == [thought, Text("hello")]
    call = Call("call_1", "look", '{"at": 3.0}')
    assert parts_of("hello", tool_calls=[CALL], **fields) == [thought, Text("hello"), call]


def detail(seal: str, place: str) -> Json:
    """Reasoning details of this server."""
    return block("reasoning.encrypted", data=seal, id=place, format="turnwire-v1", index=0)


def test_own_details_restore_the_place_of_reasoning_and_win_over_repetitions() -> None:
    details = [detail("first", "call_1"), detail("second", "call_2"), detail("last", "rs_1")]
    calls = [{**CALL, "id": "call1"}, {**CALL_2, "id": "call2"}]  # as OpenClaw spells them
    parts = parts_of(
        "ok", reasoning_content="all of it", tool_calls=calls, reasoning_details=details
    )
    found = [part.seal if isinstance(part, Reasoning) else type(part) for part in parts]
    assert found == ["first", Text, Call, "second", Call, "last"]
    own = [detail("seal", "rs_1")]
    only = parts_of("hello", reasoning_content="so", reasoning_details=own)
    assert only == [Reasoning(None, "seal"), Text("hello")]


def test_segments_precede_their_calls() -> None:
    parts = parts_of(reasoning_content=["a", "", "c"], tool_calls=[CALL, CALL_2])
    found = [part.text if isinstance(part, Reasoning) else type(part) for part in parts]
    assert found == ["a", Call, Call, "c"]


def test_reasoning_in_content_parts_is_read() -> None:
    content = [block("thinking", thinking=[text("so")]), block("refusal", refusal="no")]
    assert parts_of(content) == [Reasoning("so"), Text("no")]
    assert parts_of(None, refusal="no") == [Text("no")]


def test_pairing_is_not_checked_for_counting() -> None:
    body = json.dumps(chat(USER, chat_result("call_9", "a"))).encode()
    found = Chat().parse_prompt(body, {}).conversation.messages
    assert found[1].parts == [Result("call_9", [Text("a")])]

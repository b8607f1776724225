"""Tests how `messages` of Chat Completions become messages of the conversation."""

import json
from typing import Any

import pytest

from schemas.conversation import Call, Media, Message, Part, Reasoning, Result, Text
from schemas.errors import Invalid
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import parse
from services.frontend.content.pdf_document import make_document
from tests.kit.frontend import messages_as_notes

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": 3.0}'},
}
CALL_2 = {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}


def read_messages(*messages: dict[str, Any], counting: bool = False) -> list[Message]:
    body = json.dumps({"model": "m", "messages": messages}).encode()
    return messages_as_notes(parse(body, {}, ChatSettings(), counting=counting).conversation)


def spoken(**fields: Any) -> list[Part]:
    """The parts of one assistant message."""
    _, message = read_messages(USER, {"role": "assistant", **fields})
    assert message.role == "assistant"
    return message.parts


def refusal(*messages: dict[str, Any]) -> Invalid:
    with pytest.raises(Invalid) as caught:
        read_messages(*messages)
    return caught.value


def test_messages_of_every_role_keep_their_order() -> None:
    found = read_messages(
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "no emojis"}], "name": "ops"},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": "hello"},
        {"role": "system", "content": "now it is dark"},
        {"role": "user", "content": ""},
    )
    assert found == [
        Message("system", [Text("be brief")]),
        Message("developer", [Text("no emojis")], "ops"),
        Message("user", [Text("hi")], "ann"),
        Message("assistant", [Text("hello")]),
        Message("system", [Text("now it is dark")]),
        Message("user", []),
    ]


def test_string_equals_its_single_part() -> None:
    assert read_messages(USER) == read_messages(
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}
    )
    assert read_messages(USER) == read_messages({"role": "user", "content": ["hi"]})
    assert read_messages(USER) == read_messages(
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    )


@pytest.mark.parametrize(
    ("part", "media"),
    [
        (
            {
                "type": "image_url",
                "image_url": {"url": "data:image/png;base64,AAAAAA==", "detail": "low"},
            },
            Media("image", media_type="image/png", size_bytes=4),
        ),
        (
            {"type": "image_url", "image_url": "https://x.example/a.png"},
            Media("image", url="https://x.example/a.png"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            Media("audio", media_type="audio/wav", size_bytes=3),
        ),
        (
            {"type": "audio_url", "audio_url": {"url": "http://x/a"}},
            Media("audio", url="http://x/a"),
        ),
        (
            {"type": "video_url", "video_url": {"url": "http://x/v"}},
            Media("document", media_type="video", url="http://x/v"),
        ),
        (
            {
                "type": "file",
                "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"},
            },
            make_document("application/pdf", "AAAA", 3, "a.pdf", "Title: a.pdf\n\n"),
        ),
        ({"type": "file", "file": {"file_data": "AAA="}}, Media("document", size_bytes=2)),
    ],
)
def test_media_become_parts(part: dict[str, Any], media: Media) -> None:
    (message,) = read_messages({"role": "user", "content": [{"type": "text", "text": "see"}, part]})
    assert message.parts == [Text("see"), media]
    (_, _, answered) = read_messages(
        USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [part]},
    )
    assert answered.parts == [Result("call_1", [media], name="look")]


def test_calls_are_paired_with_their_results() -> None:
    found = read_messages(
        USER,
        {"role": "assistant", "content": "Looking.", "tool_calls": [CALL, CALL_2]},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "b"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a"},
        USER,
    )
    assert found[1:] == [
        Message(
            "assistant",
            [Text("Looking."), Call("call_1", "look", '{"at": 3.0}'), Call("call_2", "look", "{}")],
        ),
        Message(
            "tool",
            [
                Result("call_1", [Text("a")], name="look"),
                Result("call_2", [Text("b")], name="look"),
            ],
        ),
        Message("user", [Text("hi")]),
    ]


def test_arguments_other_than_a_string_keep_their_spelling() -> None:
    body = b"""{"messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[
        {"id":"a","function":{"name":"look","arguments":{"at": 1e5}}},
        {"id":"b","function":{"name":"look"}},
        {"id":"c","function":{"name":"look","arguments":"not json"}}]}]}"""
    parts = parse(body, {}, ChatSettings()).conversation.messages[1].parts
    assert parts == [
        Call("a", "look", '{"at": 1e5}'),
        Call("b", "look", ""),
        Call("c", "look", "not json"),
    ]


def test_freeform_call_is_wrapped_as_the_model_wrote_it() -> None:
    (call,) = spoken(
        tool_calls=[
            {"id": "c", "type": "custom", "custom": {"name": "patch", "input": '{"input": "x"}'}}
        ]
    )
    assert isinstance(call, Call)
    assert (call.kind, json.loads(call.arguments)) == ("custom", {"input": '{"input": "x"}'})


def test_legacy_calls_are_paired_by_name() -> None:
    legacy = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "look", "arguments": '{"at": 3}'},
    }
    answer = {"role": "function", "name": "look", "content": "seen"}
    found = read_messages(USER, legacy, answer, legacy, answer)
    calls = [part for message in found for part in message.parts if isinstance(part, Call)]
    results = [part for message in found for part in message.parts if isinstance(part, Result)]
    assert [call.call_id for call in calls] == [result.call_id for result in results]
    assert len({call.call_id for call in calls}) == 2
    assert results[0] == Result(calls[0].call_id, [Text("seen")], name="look")


@pytest.mark.parametrize(
    ("fields", "thought"),
    [
        ({"reasoning_content": "so"}, Reasoning("so")),
        ({"reasoning": "so"}, Reasoning("so")),
        ({"reasoning_text": "so"}, Reasoning("so")),
        ({"reasoning_details": "so"}, Reasoning("so")),
        ({"reasoning_content": "so", "reasoning": "so"}, Reasoning("so")),
        ({"reasoning_content": "", "reasoning": "so"}, Reasoning("so")),
        (
            {
                "reasoning": "so",
                "reasoning_details": [{"type": "reasoning.text", "text": "so", "signature": "sig"}],
            },
            Reasoning("so", "sig"),
        ),
        (
            {
                "reasoning_content": "so",
                "reasoning_details": [{"type": "reasoning.encrypted", "data": "foreign"}],
            },
            Reasoning("so"),
        ),
        (
            {
                "reasoning_content": "s",
                "thinking_blocks": [{"type": "thinking", "thinking": "so", "signature": "sig"}],
            },
            Reasoning("so", "sig"),
        ),
        (
            {"thinking_blocks": [{"type": "redacted_thinking", "data": "blob"}]},
            Reasoning(None, "blob"),
        ),
    ],
)
def test_reasoning_is_read_from_any_field_and_comes_first(
    fields: dict[str, Any], thought: Reasoning
) -> None:
    assert spoken(content="hello", **fields) == [thought, Text("hello")]
    call = Call("call_1", "look", '{"at": 3.0}')
    assert spoken(content="hello", tool_calls=[CALL], **fields) == [thought, Text("hello"), call]


def test_own_details_win_over_repetitions() -> None:
    own = [
        {
            "type": "reasoning.encrypted",
            "format": "turnwire-v1",
            "data": "seal",
            "id": "rs_1",
            "index": 0,
        }
    ]
    assert spoken(content="hello", reasoning_content="so", reasoning_details=own) == [
        Reasoning(None, "seal"),
        Text("hello"),
    ]


@pytest.mark.parametrize("odd", [5, {"a": 1}, [], [None], [{"type": "reasoning.text"}], [5], ""])
def test_reasoning_in_an_unknown_form_is_ignored(odd: Any) -> None:
    for field in ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"):
        assert spoken(content="hello", **{field: odd}) == [Text("hello")]


def test_own_details_restore_the_place_of_reasoning() -> None:
    def detail(seal: str, place: str) -> dict[str, Any]:
        return {
            "type": "reasoning.encrypted",
            "data": seal,
            "id": place,
            "format": "turnwire-v1",
            "index": 0,
        }

    details = [detail("first", "call_1"), detail("second", "call_2"), detail("last", "rs_1")]
    calls = [{**CALL, "id": "call1"}, {**CALL_2, "id": "call2"}]  # as OpenClaw spells them
    parts = spoken(
        content="ok", reasoning_content="all of it", tool_calls=calls, reasoning_details=details
    )
    assert [part.seal if isinstance(part, Reasoning) else type(part) for part in parts] == [
        "first", Text, Call, "second", Call, "last",
    ]  # fmt: skip


def test_segments_precede_their_calls() -> None:
    parts = spoken(reasoning_content=["a", "", "c"], tool_calls=[CALL, CALL_2])
    assert [part.text if isinstance(part, Reasoning) else type(part) for part in parts] == [
        "a",
        Call,
        Call,
        "c",
    ]


def test_reasoning_in_content_parts_is_read() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]},
        {"type": "refusal", "refusal": "no"},
    ]
    assert spoken(content=content) == [Reasoning("so"), Text("no")]
    assert spoken(content=None, refusal="no") == [Text("no")]


def test_empty_assistant_message_is_dropped() -> None:
    assert len(read_messages(USER, {"role": "assistant", "content": None}, USER)) == 2


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        (
            [USER, {"role": "tool", "tool_call_id": "call_9", "content": "a"}],
            "messages[1].role",
            None,
        ),
        (
            [USER, {"role": "tool", "content": "a"}],
            "messages[1].tool_call_id",
            "missing_required_parameter",
        ),
        (
            [USER, {"role": "function", "content": "a"}],
            "messages[1].name",
            "missing_required_parameter",
        ),
        ([USER, {"role": "function", "name": "look", "content": "a"}], "messages[1].role", None),
        ([{"role": "user"}], "messages[0].content", "missing_required_parameter"),
        (
            [USER, {"role": "assistant", "tool_calls": [CALL, CALL]}],
            "messages[1].tool_calls[1].id",
            None,
        ),
        (
            [USER, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}],
            "messages[1].tool_calls[0].function",
            "missing_required_parameter",
        ),
        (
            [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}],
            "messages[0].content[0].file",
            "unsupported_value",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        ([{"role": "user", "content": 5}], "messages[0].content", "invalid_type"),
        ([{"role": "judge", "content": "a"}], "messages[0].role", "invalid_value"),
    ],
)
def test_history_with_a_wrong_prompt_is_refused(
    messages: list[dict[str, Any]], param: str, code: str | None
) -> None:
    info = refusal(*messages).info
    assert (info.param, info.code) == (param, code)


def test_pairing_is_not_checked_for_counting() -> None:
    found = read_messages(
        USER, {"role": "tool", "tool_call_id": "call_9", "content": "a"}, counting=True
    )
    assert found[1].parts == [Result("call_9", [Text("a")])]


def test_results_are_sorted_by_their_calls() -> None:
    def called(*ids: str) -> dict[str, Any]:
        made = [
            {"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}}
            for each in ids
        ]
        return {"role": "assistant", "content": None, "tool_calls": made}

    def answered(*ids: str) -> list[dict[str, Any]]:
        return [{"role": "tool", "tool_call_id": each, "content": each} for each in ids]

    result = read_messages(
        USER, called("b", "a"), *answered("a", "b"), called("c", "b", "d"), *answered("d", "b", "c")
    )
    ids = [
        [part.call_id for part in message.parts if isinstance(part, Result)]
        for message in result
        if message.role == "tool"
    ]
    assert ids == [["b", "a"], ["c", "b", "d"]]

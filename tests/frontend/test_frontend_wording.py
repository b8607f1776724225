"""Tests the native wording of errors for malformed requests and invalid JSON."""

import json
from typing import Any

import pytest

from schemas.errors import Invalid
from services.frontend.apis.messages.request import parse
from services.frontend.apis.shared.decode import mend_surrogates


def refused(body: bytes) -> str:
    with pytest.raises(Invalid) as caught:
        parse(body, {})
    return caught.value.info.message


def marked(**fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", **fields}}


def with_block(block: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        ({}, "messages: Field required"),
        ([], "The request body must be a JSON object."),
        ("x", "The request body must be a JSON object."),
        (None, "The request body must be a JSON object."),
        ({"messages": "x"}, "messages: Input should be a valid list"),
        ({"messages": [5]}, "messages.0: Input should be a valid dictionary"),
        ({"messages": [{"content": "x"}]}, "messages.0.role: Field required"),
        (
            {"messages": [{"role": "developer", "content": "x"}]},
            "messages.0.role: Input should be 'user', 'assistant' or 'system'",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content: Input should be a valid string or list",
        ),
        (with_block("x"), "messages.0.content.0: Input should be a valid dictionary"),
        (
            with_block({"text": "x"}),
            "messages.0.content.0: Unable to extract tag using discriminator 'type'",
        ),
        (with_block({"type": "text"}), "messages.0.content.0.text.text: Field required"),
        (
            with_block({"type": "text", "text": 1}),
            "messages.0.content.0.text.text: Input should be a valid string",
        ),
        (
            with_block({"type": "tool_use", "id": "a", "input": {}}),
            "messages.0.content.0.tool_use.name: Field required",
        ),
        (
            with_block({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text"}]}),
            "messages.0.content.0.tool_result.content.0.text.text: Field required",
        ),
        (
            with_block({"type": "image", "source": {"type": "base64"}}),
            "messages.0.content.0.image.source.base64.data: Field required",
        ),
        ({"messages": [], "max_tokens": "9"}, "max_tokens: Input should be a valid integer"),
        ({"messages": [], "stream": "yes"}, "stream: Input should be a valid boolean"),
        ({"messages": [], "temperature": "hot"}, "temperature: Input should be a valid number"),
        ({"messages": [], "system": 5}, "system: Input should be a valid string or list"),
        (
            {"messages": [], "tools": [{"input_schema": []}]},
            "tools.0.input_schema: Input should be a valid dictionary",
        ),
        (
            {"messages": [], "output_config": {"effort": "huge"}},
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ),
    ],
)
def test_failed_validation_has_native_wording(request_body: Any, message: str) -> None:
    assert refused(json.dumps(request_body).encode()) == message


def test_error_for_an_unknown_block_type_names_the_known_types() -> None:
    message = refused(json.dumps(with_block({"type": "hologram", "data": 1})).encode())
    assert message.startswith(
        "messages.0.content.0: Input tag 'hologram' found using 'type' does not match any of the expected tags: 'text'"
    )
    assert "'tool_result'" in message


def test_error_for_an_unknown_block_in_a_result_names_the_known_types() -> None:
    inner = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "thinking", "thinking": ""}],
    }
    message = refused(json.dumps(with_block(inner)).encode())
    assert message == (
        "messages.0.content.0.content.0: Input tag 'thinking' found using 'type' does not match any of the expected "
        "tags: 'text', 'image', 'document', 'search_result', 'tool_reference', 'browser_state'"
    )


def unmatched(place: str, *known: str) -> str:
    tags = ", ".join(f"'{tag}'" for tag in known)
    return (
        f"{place}: Input tag 'x' found using 'type' does not match any of the expected tags: {tags}"
    )


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (
            {"thinking": {"type": "x"}},
            unmatched("thinking", "enabled", "adaptive", "between_tools", "disabled"),
        ),
        ({"tool_choice": {"type": "x"}}, unmatched("tool_choice", "auto", "any", "tool", "none")),
        ({"system": [{"type": "x"}]}, unmatched("system.0", "text")),
        (
            {"system": [marked(ttl="2h")]},
            "system.0.cache_control.ephemeral.ttl: Input should be '5m' or '1h'",
        ),
        ({"cache_control": {"type": "x"}}, unmatched("cache_control", "ephemeral")),
        (
            with_block(marked(ttl=3600)),
            "messages.0.content.0.text.cache_control.ephemeral.ttl: Input should be '5m' or '1h'",
        ),
        (
            {
                "tools": [
                    {
                        "name": "t",
                        "input_schema": {"type": "object"},
                        "cache_control": {"type": "ephemeral", "ttl": "x"},
                    }
                ]
            },
            "tools.0.cache_control.ephemeral.ttl: Input should be '5m' or '1h'",
        ),
        (
            {"output_config": {"format": {"type": "x"}}},
            unmatched("output_config.format", "json_schema"),
        ),
        (
            with_block({"type": "image", "source": {"type": "x"}}),
            unmatched("messages.0.content.0.source", "base64", "url", "file"),
        ),
        (
            with_block({"type": "document", "source": {"type": "x"}}),
            unmatched("messages.0.content.0.source", "base64", "url", "file", "text", "content"),
        ),
        (
            with_block(
                {"type": "document", "source": {"type": "content", "content": [{"type": "x"}]}}
            ),
            unmatched("messages.0.content.0.source.content.0", "text", "image"),
        ),
        (
            with_block({"type": "search_result", "content": [{"type": "x"}]}),
            unmatched("messages.0.content.0.content.0", "text"),
        ),
        (
            with_block({"type": "tool_addition", "tool": {"type": "x"}}),
            unmatched(
                "messages.0.content.0.tool",
                "tool_reference",
                "tool_definition",
                "mcp_tool_reference",
                "mcp_toolset_reference",
            ),
        ),
    ],
)
def test_error_for_an_unknown_type_names_the_types_allowed_there(
    request_body: Any, message: str
) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **request_body}
    assert refused(json.dumps(body).encode()) == message


def test_tool_choice_without_a_name_is_refused() -> None:
    tool = {"name": "look", "input_schema": {}}
    body = {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [tool],
        "tool_choice": {"type": "tool"},
    }
    assert refused(json.dumps(body).encode()) == "tool_choice.tool.name: Field required"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"messages": []} x',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"max_tokens": 1, "messages": [{"role": "assistant", "content": '
        b'[{"type": "tool_use", "id": "a", "name": "b", "input": {"c": "\xff"}}]}]}',
        b'{"messages": NaN}',
        b'\xef\xbb\xbf{"messages": []}',
    ],
)
def test_body_other_than_json_is_refused(body: bytes) -> None:
    assert refused(body).startswith("The request body is not valid JSON: ")


@pytest.mark.parametrize(
    "body",
    [
        b'{"unknown": ' + b"[" * 100_000,
        b'{"tools": [{"input_schema": ' + b'{"a":' * 100_000,
        b'{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": '
        + b"[" * 100_000,
    ],
)
def test_deep_nesting_is_refused(body: bytes) -> None:
    assert refused(body) == "The request body is nested too deeply."


def test_wording_survives_invalid_json_after_the_mistake() -> None:
    assert refused(b'{"max_tokens": "x", ') == "max_tokens: Input should be a valid integer"


@pytest.mark.parametrize(
    ("source", "mended"),
    [
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\uD83D\uDE00 ok"', rb'"\uD83D\uDE00 ok"'),
        (rb'"cut \ud83d"', rb'"cut \ufffd"'),
        (rb'"\ude00 cut"', rb'"\ufffd cut"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\u0041\ude00"', rb'"\u0041\ufffd"'),
        (rb'"\ude00\ude00"', rb'"\ufffd\ufffd"'),
        (rb'"\ud83d\n"', rb'"\ufffd\n"'),
        (rb'"C:\\ud83d"', rb'"C:\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\\\\ud83d"', rb'"\\\\ud83d"'),
    ],
)
def test_lone_surrogate_is_mended(source: bytes, mended: bytes) -> None:
    assert mend_surrogates(source) == mended


def test_tool_result_cut_inside_an_emoji_is_served() -> None:
    body = rb'{"max_tokens": 9, "messages": [{"role": "user", "content": "cut \ud83d"}]}'
    (message,) = parse(body, {}).conversation.messages
    assert message.parts[0].text == "cut \ufffd"  # type: ignore[union-attr]

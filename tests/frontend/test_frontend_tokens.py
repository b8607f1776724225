"""Tests counting, tokenizing and detokenizing over HTTP."""

from typing import Any

import pytest
from aiohttp import ClientSession

from tests.kit.frontend import MODEL, serving

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
@pytest.mark.parametrize(
    ("body", "text", "special"),
    [
        ({"prompt": "a bb"}, "a bb", True),
        ({"text": "a bb", "add_special_tokens": False}, "a bb", False),
        ({"prompt": "a bb", "messages": HI}, "a bb", True),
    ],
)
async def test_text_is_tokenized(path: str, body: dict[str, Any], text: str, special: bool) -> None:
    async with serving() as served, ClientSession(served.url) as http:
        document = await (await http.post(path, json={"model": "claude-alias", **body})).json()
    assert document == {"count": 2, "max_model_len": 131072, "tokens": [1, 2], "token_strs": None}
    assert served.gateway.tokenized == [(MODEL, text, None, special)]


async def test_conversation_is_tokenized() -> None:
    body = {
        "model": MODEL,
        "messages": HI,
        "system": "be brief",
        "tools": [{"name": "look", "input_schema": {}}],
    }
    async with serving() as served, ClientSession(served.url) as http:
        document = await (await http.post("/v1/tokenize", json=body)).json()
    assert document["count"] == len(document["tokens"])
    ((model, text, conversation, _),) = served.gateway.tokenized
    assert (model, text) == (MODEL, None)
    assert conversation is not None
    assert conversation.system[0].text == "be brief"
    assert [tool.name for tool in conversation.tools] == ["look"]


async def test_ids_are_detokenized() -> None:
    async with serving() as served, ClientSession(served.url) as http:
        for path in ("/detokenize", "/v1/detokenize"):
            document = await (await http.post(path, json={"model": MODEL, "tokens": [1, 3]})).json()
            assert document == {"prompt": "x xxx"}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/tokenize", {"model": MODEL}, "prompt: Field required (or `text`, or `messages`)"),
        ("/v1/tokenize", {"model": MODEL, "prompt": 5}, "prompt: Input should be a valid string"),
        ("/v1/detokenize", {"model": MODEL}, "tokens: Field required"),
        (
            "/v1/detokenize",
            {"model": MODEL, "tokens": ["x"]},
            "tokens.0: Input should be a valid integer",
        ),
        (
            "/v1/detokenize",
            {"model": MODEL, "tokens": [-1]},
            "tokens.0: Input should be greater than or equal to 0",
        ),
    ],
)
async def test_invalid_request_is_refused(path: str, body: dict[str, Any], message: str) -> None:
    async with serving() as served, ClientSession(served.url) as http:
        response = await http.post(path, json=body)
        assert response.status == 400
        assert (await response.json())["error"]["message"] == message


async def test_count_reports_context_management() -> None:
    body = {"model": MODEL, "messages": HI}
    async with serving() as served, ClientSession(served.url) as http:
        plain = await (await http.post("/v1/messages/count_tokens", json=body)).json()
        managed = await (
            await http.post(
                "/v1/messages/count_tokens?beta=true",
                json={**body, "context_management": {"edits": []}},
            )
        ).json()
    assert plain == {"input_tokens": 4321}
    assert managed == {"input_tokens": 4321, "context_management": {"original_input_tokens": 4321}}
    assert served.lines[-1]["prompt_tokens"] == 4321


CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [*HI, {"role": "assistant", "tool_calls": [CALL]}]},
        {"messages": [{"role": "developer", "content": "be brief"}, *HI]},
        {"messages": HI, "tools": [{"type": "function", "function": {"name": "look"}}]},
        {"messages": HI, "add_generation_prompt": True},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://x"}}],
                }
            ]
        },
        {"messages": [{"role": "tool", "tool_call_id": "call_9", "content": "alone"}]},
        {"messages": HI, "tools": [{"type": "custom", "custom": {"name": "patch"}}]},
        {"messages": HI, "functions": [{"name": "look"}]},
        {"messages": HI, "tool_choice": "auto"},
        {"messages": HI, "thinking": False},
        {"messages": HI, "max_completion_tokens": 5},
        {"messages": HI, "response_format": {"type": "text"}},
        {"messages": HI, "reasoning_effort": "none"},
        {"messages": [*HI, {"role": "assistant", "content": "x", "reasoning": "y"}]},
    ],
)
async def test_chat_conversation_is_tokenized(body: dict[str, Any]) -> None:
    async with serving() as served, ClientSession(served.url) as http:
        assert (await http.post("/tokenize", json={"model": MODEL, **body})).status == 200
    ((_, _, conversation, _),) = served.gateway.tokenized
    assert conversation is not None
    assert not conversation.prefill


async def test_tokenized_chat_prompt_equals_the_turns_prompt() -> None:
    body = {
        "model": MODEL,
        "messages": HI,
        "functions": [{"name": "look"}],
        "reasoning_effort": "none",
    }
    async with serving() as served, ClientSession(served.url) as http:
        assert (await http.post("/v1/tokenize", json=body)).status == 200
        assert (await http.post("/v1/chat/completions", json=body)).status == 200
    ((_, _, result, _),) = served.gateway.tokenized
    asked = served.gateway.turns[0].conversation
    assert result is not None
    assert (result.tools, result.thinking, result.messages) == (
        asked.tools,
        asked.thinking,
        asked.messages,
    )
    assert [tool.name for tool in result.tools] == ["look"]


async def test_ambiguous_body_is_read_as_messages() -> None:
    async with serving() as served, ClientSession(served.url) as http:
        assert (await http.post("/tokenize", json={"model": MODEL, "messages": HI})).status == 200
        refused = await http.post("/tokenize", json={"model": MODEL, "messages": 5})
        assert refused.status == 400
    ((_, _, conversation, _),) = served.gateway.tokenized
    assert conversation is not None
    assert conversation.prefill

"""Chat Completions and Completions requests: any body is parsed and encodable, or refused with
`Invalid`.

Layout: which of the two; then the body.
"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec

from fuzz.bodies import SCALARS, Mutator
from schemas.errors import Invalid
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.shared.shared_errors import openai_error
from services.frontend.content.image import without_images

_encoder: Final = msgspec.json.Encoder()
_dialects: Final = (Chat(), Completions())
_WORDS: Final = tuple(
    """
    auto none required developer system user assistant tool function custom allowed_tools text
    image_url input_audio file refusal thinking video_url grammar lark regex json_object json_schema
    enabled disabled adaptive high minimal reasoning.text reasoning.encrypted reasoning.summary
    turnwire-v1 redacted_thinking data:image/png;base64,AAAA
    """.split()  # noqa: SIM905
)
_KEYS: Final = tuple(
    """
    model messages role content name tool_calls tool_call_id function_call functions tools
    tool_choice type function custom id arguments input text image_url url file file_data file_id
    filename input_audio data format refusal reasoning_content reasoning reasoning_details
    thinking_blocks thinking signature summary prefix partial response_format json_schema schema
    strict logprobs top_logprobs logit_bias n seed stop stop_token_ids max_tokens
    max_completion_tokens temperature top_p top_k min_p reasoning_effort enable_thinking
    thinking_budget verbosity stream stream_options include_usage parallel_tool_calls allowed_tools
    mode guided_json structured_outputs chat_template_kwargs nvext priority cache_salt prompt suffix
    echo best_of service_tier modalities
    """.split()  # noqa: SIM905
)
_CALL: Final = {"id": "c1", "type": "function", "function": {"name": "n", "arguments": '{"a": 1}'}}
_CUSTOM: Final = {"id": "c2", "type": "custom", "custom": {"name": "p", "input": "raw"}}
_MESSAGES: Final[tuple[dict[str, Any], ...]] = (
    {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL, _CUSTOM]},
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    {"role": "assistant", "reasoning_content": ["a", "b"], "tool_calls": [_CALL]},
    {
        "role": "assistant",
        "content": "x",
        "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}],
    },
    {"role": "assistant", "function_call": {"name": "n", "arguments": "{}"}},
    {"role": "function", "name": "n", "content": "seen"},
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    },
    {"role": "user", "content": [{"type": "file", "file": {"file_data": "AAAA", "filename": "f"}}]},
)
_GRAMMAR: Final = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}
_TOOLS: Final = (
    {"type": "function", "function": {"name": "n", "parameters": {"type": "object"}}},
    {"type": "custom", "custom": {"name": "p", "format": _GRAMMAR}},
)
_DETAIL: Final = {
    "type": "reasoning.encrypted",
    "data": "d",
    "id": "c1",
    "format": "turnwire-v1",
    "index": 0,
}
_mutator: Final = Mutator(_KEYS, (*SCALARS, *_WORDS, *_MESSAGES, *_TOOLS, _CALL, _CUSTOM, _DETAIL))


def one(data: bytes) -> None:
    """Raises any exception of the parser but `Invalid`, and any of the encoder."""
    dialect = _dialects[bool(data[:1] and data[0] & 1)]
    try:
        ask = dialect.parse(data[1:], {"user-agent": "fuzz"})
    except Invalid as error:
        _encoder.encode(openai_error(error.info))
    else:
        for conversation in ask.conversations[:2]:
            _encoder.encode(without_images(conversation))


def mutate(data: bytes, chance: Random) -> bytes:
    """Another body, mostly for the same API."""
    head = data[:1] if chance.random() < 0.95 else bytes([chance.randrange(2)])
    return head + _mutator.mutate(
        data[1:], chance, lambda: chance.choice([seed for _, seed in seeds()])[1:]
    )


def seeds() -> Iterator[tuple[str, bytes]]:
    """A request with every field, small ones with each kind of message, and prompts."""
    user = {"role": "user", "content": "hi"}
    whole = {
        "model": "m",
        "messages": [user, *_MESSAGES],
        "tools": _TOOLS,
        "tool_choice": "auto",
        "n": 2,
        "seed": 1,
        "stop": ["x", 5],
        "logit_bias": {"5": 1},
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "high",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"a": 1},
        "thinking": {"type": "enabled"},
    }
    yield "whole", b"\0" + json.dumps(whole).encode()
    for number, message in enumerate(_MESSAGES):
        yield (
            f"message-{number}",
            b"\0" + json.dumps({"model": "m", "messages": [user, message]}).encode(),
        )
    for number, prompt in enumerate(("text", ["a", "b"], [1, 2], [[1], [2, 3]], [["a"]])):
        body = {
            "model": "m",
            "prompt": prompt,
            "n": 2,
            "echo": True,
            "logprobs": 0,
            "max_tokens": 3,
        }
        yield f"prompt-{number}", b"\1" + json.dumps(body).encode()

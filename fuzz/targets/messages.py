"""Messages requests: any body is parsed and encodable for the bus, or refused with `Invalid`.

Layout: counting or not; then the body.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from fuzz.bodies import SCALARS, Mutator
from schemas.errors import Invalid
from services.frontend.apis.messages.request import parse
from services.frontend.content.image import without_images

FIXTURES: Final = Path(__file__).parents[2] / "tests" / "fixtures" / "messages"
_encoder: Final = msgspec.json.Encoder()
_WORDS: Final = tuple(
    """
    auto any tool none adaptive enabled disabled user assistant system text thinking
    redacted_thinking tool_use tool_result image document search_result base64 url ephemeral
    tool_reference server_tool_use web_search_tool_result compaction bash_20250124
    text_editor_20250728 web_search_20250305 memory_20250818 json_schema
    """.split()  # noqa: SIM905
)
_KEYS: Final = tuple(
    """
    model max_tokens messages system tools tool_choice thinking temperature top_p top_k stream
    stop_sequences metadata user_id output_config output_format effort format schema betas container
    context_management edits mcp_servers service_tier role content type text input id name
    tool_use_id is_error source data media_type url cache_control citations title context
    budget_tokens display signature input_schema defer_loading disable_parallel_tool_use
    chat_template_kwargs speed
    """.split()  # noqa: SIM905
)
_BLOCKS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "text", "text": "x"},
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "tool_use", "id": "t1", "name": "n", "input": {}},
    {"type": "tool_result", "tool_use_id": "t1"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {
        "type": "web_search_tool_result",
        "content": [{"title": "t", "url": "u", "encrypted_content": "e"}],
    },
)
_VALUES: Final[tuple[Any, ...]] = (
    *SCALARS,
    *_WORDS,
    *_BLOCKS,
    {"type": "ephemeral", "ttl": "1h"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": []},
    {"name": "n", "input_schema": {"type": "object", "properties": {}}},
)
_mutator: Final = Mutator(_KEYS, _VALUES)


def one(data: bytes) -> None:
    """Raises any exception of the parser but `Invalid`, and any of the encoder."""
    try:
        ask = parse(data[1:], {"user-agent": "fuzz"}, counting=bool(data[:1] and data[0] & 1))
    except Invalid as error:
        _encoder.encode(error.info)
    else:
        _encoder.encode(without_images(ask.conversation))


def mutate(data: bytes, chance: Random) -> bytes:
    """Another body: one of its values, keys or list items is replaced, added, moved or dropped."""
    head = bytes([chance.randrange(2)])
    return head + _mutator.mutate(
        data[1:], chance, lambda: chance.choice([seed for _, seed in seeds()])[1:]
    )


def seeds() -> Iterator[tuple[str, bytes]]:
    """The request fixtures, and small ones of every kind of block."""
    for file in sorted(FIXTURES.glob("*.json")):
        yield file.stem, b"\0" + file.read_bytes()
    for number, block in enumerate(_BLOCKS):
        for role in ("user", "assistant"):
            message = {"role": role, "content": [block]}
            body = {
                "model": "m",
                "max_tokens": 10,
                "messages": [{"role": "user", "content": "hi"}, message],
            }
            yield f"{role}-{number}", b"\0" + json.dumps(body).encode()

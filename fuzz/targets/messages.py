"""Messages requests: any body is understood, and fits the bus, or is refused as `Invalid`.

counting or not; then the body
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from schemas.errors import Invalid
from services.frontend.dialects.messages.request import parse

FIXTURES: Final = Path(__file__).parents[2] / "tests" / "fixtures" / "messages"
_encoder: Final = msgspec.json.Encoder()
_WORDS: Final = tuple(
    """
    auto any tool none adaptive enabled disabled user assistant system text thinking redacted_thinking tool_use
    tool_result image document search_result base64 url ephemeral tool_reference server_tool_use
    web_search_tool_result compaction bash_20250124 text_editor_20250728 web_search_20250305 memory_20250818 json_schema
    """.split()  # noqa: SIM905
)
_KEYS: Final = tuple(
    """
    model max_tokens messages system tools tool_choice thinking temperature top_p top_k stream stop_sequences metadata
    user_id output_config output_format effort format schema betas container context_management edits mcp_servers
    service_tier role content type text input id name tool_use_id is_error source data media_type url cache_control
    citations title context budget_tokens display signature input_schema defer_loading disable_parallel_tool_use
    chat_template_kwargs speed
    """.split()  # noqa: SIM905
)
_BLOCKS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "text", "text": "x"},
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "tool_use", "id": "t1", "name": "n", "input": {}},
    {"type": "tool_result", "tool_use_id": "t1"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "web_search_tool_result", "content": [{"title": "t", "url": "u", "encrypted_content": "e"}]},
)
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 1e400, 2**63, 2**70, "", " ", "x", "\x00", "\ud800", [], {}, [[]]),
    *_WORDS,
    *_BLOCKS,
    {"type": "ephemeral", "ttl": "1h"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": []},
    {"name": "n", "input_schema": {"type": "object", "properties": {}}},
)


def one(data: bytes) -> None:
    """Raises whatever the parser raised that is not `Invalid`, or the encoder."""
    try:
        ask = parse(data[1:], {"user-agent": "fuzz"}, counting=bool(data[:1] and data[0] & 1))
    except Invalid as error:
        _encoder.encode(error.info)
    else:
        _encoder.encode(ask.conversation)


def mutate(data: bytes, chance: Random) -> bytes:
    """Another body: one of its values, keys or list items is replaced, added, moved or dropped."""
    head = bytes([chance.randrange(2)])
    try:
        body = json.loads(data[1:])
        for _ in range(chance.choice((1, 1, 2, 4))):
            body = _changed(body, chance)
        text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    except (ValueError, RecursionError):
        return head + chance.choice([seed for _, seed in seeds()])[1:]
    return head + text.encode("utf-8", "replace")


def _changed(body: Any, chance: Random) -> Any:
    places = list(_places(body))
    if not places:
        return chance.choice(_VALUES)
    holder, key = chance.choice(places)
    value = chance.choice(_VALUES) if chance.random() < 0.6 else _at(*chance.choice(places))
    value = deepcopy(value)
    action = chance.randrange(5)
    if action == 0 and chance.random() < 0.1:
        holder[key] = _nested(holder[key], chance.choice((30, 300, 800)))
    elif action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[chance.choice(_KEYS)] = value
    elif action == 2 and isinstance(holder, list):
        holder.insert(key, value)
    elif action == 3 and isinstance(holder[key], str):
        text = holder[key]
        at = chance.randrange(len(text) + 1)
        holder[key] = text[:at] + chance.choice((" ", "\n", "\x00", "é", "船", "x" * 300)) + text[at:]
    else:
        holder[key] = value
    return body


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _at(holder: Any, key: Any) -> Any:
    return holder[key]


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        if depth < 20:
            yield from _places(item, depth + 1)


def seeds() -> Iterator[tuple[str, bytes]]:
    """The request fixtures, and small ones of every kind of block."""
    for file in sorted(FIXTURES.glob("*.json")):
        yield file.stem, b"\0" + file.read_bytes()
    for number, block in enumerate(_BLOCKS):
        for role in ("user", "assistant"):
            message = {"role": role, "content": [block]}
            body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}, message]}
            yield f"{role}-{number}", b"\0" + json.dumps(body).encode()

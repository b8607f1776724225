"""The messages of a stored chat completion, as the API lists them. Pure."""

from typing import Any

import msgspec
from msgspec import Raw, Struct


class _Body(Struct):
    messages: list[dict[str, Any]] = []


_body = msgspec.json.Decoder(_Body)


def stored_messages(body: bytes, id: str) -> list[Raw]:
    """The messages of a request body, each with an id. `content` has the texts of a list of parts."""
    return [
        Raw(msgspec.json.encode(_listed(message, f"{id}-{number}")))
        for number, message in enumerate(_body.decode(body).messages)
    ]


def _listed(message: dict[str, Any], id: str) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    if parts is not None:
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str)) or None
    return {"refusal": None, "name": None, **message, "id": id, "content": content, "content_parts": parts}

"""Documents out of an API's own stream: its pieces are put together as the SDKs put them together."""

from collections.abc import Iterator
from typing import Any

import msgspec

_DATA = b"data: {"


def payloads(stream: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream's events."""
    for line in stream.split(b"\n"):
        if line.startswith(_DATA):
            yield msgspec.json.decode(line[len(_DATA) - 1 :])


def merge(into: dict[str, Any], piece: dict[str, Any]) -> None:
    """Adds a piece: texts and lists are appended, objects merged, numbers and null replaced.

    Calls are merged by their `index`, which a document does not have.
    """
    for name, value in piece.items():
        held = into.get(name)
        if isinstance(value, list):
            if held is None:
                held = into[name] = []
            for item in value:
                index = item.pop("index") if name == "tool_calls" else len(held)
                if index < len(held):
                    merge(held[index], item)
                else:
                    held.append(item)
        elif isinstance(value, dict) and held is not None:
            merge(held, value)
        elif isinstance(value, str) and held is not None:
            into[name] = held + value
        elif value is not None or name not in into:
            into[name] = value

"""Reads what an API answers: streams, and whether a stream says what its document says."""

import json
from typing import Any, TypeAlias, cast

from turnwire_tools.clients.answer import Api, ClientAnswer
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import SseParser

Frame: TypeAlias = tuple[str, Any]
"""The name of an event, and its data; that of `[DONE]` is a string."""


def frames(stream: bytes) -> list[Frame]:
    """The events of a stream, each of one `event:` line at most and one `data:` line."""
    found = []
    assert stream.endswith(b"\n\n"), stream[-80:]
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        *event, data = frame.split("\n")
        said = data.removeprefix("data: ")
        assert said != data
        name = event[0].removeprefix("event: ") if event else ""
        found.append((name, said if said == "[DONE]" else json.loads(said)))
    return found


def events(stream: bytes) -> list[Any]:
    """The data of the events, without `[DONE]`; each that has a type is named so."""
    found = [(name, data) for name, data in frames(stream) if data != "[DONE]"]
    for name, data in found:
        assert data.get("type", name) in (name, "ping")
    return [data for _, data in found]


def dispatches(stream: bytes) -> list[Frame]:
    """The events that say a whole call or thought again."""
    return [(name, data) for name, data in frames(stream) if name.endswith("_dispatch")]


def check_document(api: str, stream: bytes, document: dict[str, Any]) -> None:
    """Checks that a client reads the same in a stream and in its document. Raises IllFormed for
    those that the clients of `turnwire_tools` do not read."""
    client = CLIENTS[cast(Api, api)]
    reader, whole = client.reader(), client.reader()
    for name, data in SseParser().feed(stream):
        reader.event(name, data)
    reader.finish()
    whole.document(document)
    for kind in ("reasoning", "text"):  # documents of Chat have each of them in one place
        assert _texts(reader.answer, kind) == _texts(whole.answer, kind)
    calls, others = ([b for b in one.answer.blocks if b.kind == "call"] for one in (reader, whole))
    for call, other in zip(calls, others, strict=True):
        assert (call.name, call.call_id) == (other.name, other.call_id)
        assert call.as_story() == other.as_story() or call.as_story()[0] == "cut call"


def _texts(answer: ClientAnswer, kind: str) -> str:
    return "".join(block.text for block in answer.blocks if block.kind == kind)

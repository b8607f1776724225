"""Reads what an API answers: streams, and whether a stream says what its document says."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jiter

from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import SseParser

Frame: TypeAlias = tuple[str, Any]
"""The name of an event, and its data; that of `[DONE]` is a string."""

_ONCE = ("id", "name", "type", "role", "format", "data")
"""Members of a chunk's delta that are sent once."""


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
    """Checks that a stream keeps the order of its API, and has the content of the document."""
    _CHECKS[api](stream, document)


def check_message(stream: bytes, document: dict[str, Any]) -> None:
    """Checks a stream of Messages against its document. The reader checks the order of events."""
    reader, whole = CLIENTS["messages"].reader(), CLIENTS["messages"].reader()
    for name, data in SseParser().feed(stream):
        reader.event(name, data)
    reader.finish()
    whole.document(document)
    for block, other in zip(reader.answer.blocks, whole.answer.blocks, strict=True):
        cut = block.as_story()[0] == "cut call"
        assert cut or block.as_story() == other.as_story()
        assert (block.name, block.call_id, block.seal) == (other.name, other.call_id, other.seal)
        assert block.kind != "text" or block.text
    for block, other in zip(reader.answer.blocks, document["content"], strict=True):
        if block.as_story()[0] == "cut call":
            _check_cut_input(block.text, other["input"])
    end = frames(stream)[-2][1]["delta"]
    assert end == {
        name: document[name] for name in ("stop_reason", "stop_sequence", "stop_details")
    }


def _check_cut_input(arguments: str, document_input: dict[str, Any]) -> None:
    """The SDKs make the same of cut arguments; they also keep a cut value if it is a number, an
    object or a list."""
    try:
        found = jiter.from_json((arguments or "{}").encode(), partial_mode=True)
    except ValueError:
        found = {}
    found = found if isinstance(found, dict) else {}
    assert list(found)[:-1] == list(document_input)[: max(len(found) - 1, 0)]
    assert document_input.items() <= found.items()


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream of Chat Completions, without dispatch events."""
    *said, (_, done) = frames(stream)
    assert done == "[DONE]"
    return [data for name, data in said if name == ""]


def assembled(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of a document that a client assembles from the chunks."""
    made: dict[int, dict[str, Any]] = {}
    for chunk in said:
        for choice in chunk["choices"]:
            empty = {"index": choice["index"], "message": {}, "logprobs": None}
            into = made.setdefault(choice["index"], empty)
            assert "finish_reason" not in into, "a chunk after the choice's last"
            _add(into["message"], choice["delta"])
            if choice["logprobs"] is not None:
                into["logprobs"] = into["logprobs"] or {"content": [], "refusal": None}
                into["logprobs"]["content"] += choice["logprobs"]["content"]
            if choice["finish_reason"] is not None:
                ends = ("finish_reason", "stop_reason")
                into |= {key: choice[key] for key in ends if key in choice}
    for choice in made.values():
        message = choice["message"]
        for call in message.get("tool_calls", []):
            del call["index"]
        if not message["content"] and ("tool_calls" in message or "function_call" in message):
            message["content"] = None
    return [made[index] for index in sorted(made)]


def _add(into: dict[str, Any], delta: dict[str, Any]) -> None:
    """Adds a chunk's delta to the message."""
    for key, value in delta.items():
        if key in ("tool_calls", "reasoning_details"):
            entries = into.setdefault(key, [])
            for entry in value:
                assert entry["index"] in (len(entries), len(entries) - 1)
                if entry["index"] == len(entries):
                    entries.append({})
                _add(entries[-1], entry)
        elif isinstance(value, dict):
            _add(into.setdefault(key, {}), value)
        elif isinstance(value, str) and isinstance(into.get(key), str):
            assert key not in _ONCE, f"{key} was said twice"
            into[key] += value
        else:
            into[key] = value


def check_completion(stream: bytes, document: dict[str, Any]) -> None:
    """Checks a stream of Chat Completions against its document."""
    said = chunks(stream)
    assert assembled(said) == document["choices"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in said}) == 1
    roles = [
        choice["index"]
        for chunk in said
        for choice in chunk["choices"]
        if "role" in choice["delta"]
    ]
    assert roles == list(range(len(document["choices"])))
    with_usage = {"usage" in chunk for chunk in said}
    assert len(with_usage) == 1
    if with_usage == {True}:
        assert said[-1]["choices"] == []
        assert said[-1]["usage"] == document["usage"]


def check_response(stream: bytes, document: dict[str, Any]) -> None:
    """Checks a stream of Responses against its document."""
    assert stream.endswith(b"data: [DONE]\n\n")
    seen = [data for data in events(stream) if not data["type"].endswith("_dispatch")]
    assert [each["sequence_number"] for each in seen] == list(range(len(seen)))
    assert [each["type"] for each in seen[:2]] == ["response.created", "response.in_progress"]
    assert seen[-1]["response"] == document
    _check_items(seen[2:-1], document["output"])


def _check_items(seen: list[dict[str, Any]], output: list[dict[str, Any]]) -> None:
    shown: dict[str, str] = {}
    added: list[dict[str, Any]] = []
    done: list[int] = []
    for each in seen:
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(added)
            added.append(each["item"])
        elif kind == "output_item.done":
            assert each["output_index"] == len(added) - 1
            assert each["item"] == output[each["output_index"]]
            done.append(each["output_index"])
        else:
            assert each["item_id"] == added[each["output_index"]]["id"]
            if kind.endswith(".delta"):
                assert each["delta"]
                shown[each["item_id"]] = shown.get(each["item_id"], "") + each["delta"]
    assert [item["id"] for item in added] == [item["id"] for item in output]
    assert len(set(done)) == len(done)
    for index, item in enumerate(output):
        text = item.get("arguments", item.get("input"))
        if item["type"] in ("message", "reasoning"):
            text = item["content"][0]["text"]
            assert text
        if isinstance(text, str):
            assert shown.get(item["id"], "") == text
        if index not in done:
            assert item["status"] == "incomplete"


_CHECKS: Mapping[str, Callable[[bytes, dict[str, Any]], None]] = {
    "messages": check_message,
    "chat": check_completion,
    "responses": check_response,
}

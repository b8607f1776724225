"""The frontend's streams have the events and fields of the vendors' own ones, but for the declared
differences.

A recording is a line of `vendor_streams.jsonl`: the order of its blocks, and its events with the
type of each field, without its texts. Consecutive events of a type are one. A field that begins
with `=` has this value; `null` is equal to any type.
"""

import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
from msgspec import Struct

from tests.kit.every import Cases
from turnwire_tools.clients.answer import APIS, Api
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import SseParser
from turnwire_tools.replay.gateway import ReplayGateway, serving
from turnwire_tools.replay.replay_file import ReplayFile, read

HERE = Path(__file__).parent
VALUES = ("type", "role", "object", "status", "stop_reason", "finish_reason", "phase")
"""Fields that are compared by value."""
OPAQUE = ("input", "arguments", "parameters", "schema", "metadata", "tools")
"""Fields with the content of the request or of a call."""

Event = tuple[str, Mapping[str, str]]
"""The type, and the types of its fields by their paths."""


class Recording(Struct):
    """One recorded stream."""

    source: str
    """The repository, and the file in it."""
    licence: str
    api: Api
    asked: list[str]
    """What the request asked for, as far as the stream depends on it."""
    blocks: list[str]
    end: str
    events: list[tuple[str, Any]]


class Difference(NamedTuple):
    """A field or an event that only one side has, or that has another type on each side."""

    event: str
    field: str
    """Empty: the whole event."""
    sides: str
    """`vendor`, `ours`, or both types."""


class Declared(Struct):
    """Differences that are meant to be. `events` and `fields` may have wildcards."""

    api: Api
    events: tuple[str, ...]
    why: str
    sides: str
    fields: tuple[str, ...] = ("",)

    def covers(self, api: Api, difference: Difference) -> bool:
        """Returns whether a difference is one of these."""
        return (
            (self.api, self.sides) == (api, difference.sides)
            and any(fnmatchcase(difference.event, pattern) for pattern in self.events)
            and any(fnmatchcase(difference.field, pattern) for pattern in self.fields)
        )


_LINES = (HERE / "vendor_streams.jsonl").read_text().splitlines()
RECORDINGS = [msgspec.json.decode(line, type=Recording) for line in _LINES]
_TABLE = tomllib.loads((HERE / "vendor_differences.toml").read_text())
DECLARED = [Declared(**entry) for entry in _TABLE["difference"]]


def replay_of(recording: Recording) -> ReplayFile:
    """Makes a replay file in which the model says the blocks of a recording."""
    texts = {
        "reasoning": ["<think>\n", "I think", " about it.", "\n</think>\n\n"],
        "text": ["Here is", " the answer."],
        "call": call("weather", "city", "Paris"),
        "custom": call("patch", "input", "a\nb"),
        "search": call("tool_search", "query", "weather"),
    }
    first = recording.blocks[0] == "reasoning"
    output = [piece for block in recording.blocks for piece in texts[block]][int(first) :]
    ends = {"max_tokens": "length", "length": "length"}
    lines: list[Any] = [
        {"replay": 1, "in_reasoning": first, "tools": []},
        {"request": request(recording), "api": recording.api},
        *([piece] for piece in output),
        {"finish": ends.get(recording.end, "stop")},
    ]
    return read(recording.source, "\n".join(map(json.dumps, lines)))


def call(name: str, argument: str, value: str) -> list[str]:
    """Returns a call in the form of the replay's family."""
    return [
        f"<tool_call>\n<function={name}>\n",
        f"<parameter={argument}>\n",
        value,
        "\n</parameter>\n</function>\n",
        "</tool_call>",
    ]


def request(recording: Recording) -> dict[str, Any]:
    """Makes the request of a recording."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "parameters": schema}
    tools: dict[Api, list[dict[str, Any]]] = {
        "messages": [{"name": "weather", "input_schema": schema}],
        "responses": [{"type": "function", **function, "strict": False}],
        "chat": [{"type": "function", "function": function}],
    }
    if "custom" in recording.blocks:
        tools["responses"].append({"type": "custom", "name": "patch"})
    if "search" in recording.blocks:
        search = {"type": "tool_search", "execution": "client", "description": "d"}
        tools["responses"].append({**search, "parameters": schema})
    body: dict[str, Any] = {"model": "m", "stream": True, "tools": tools[recording.api]}
    match recording.api:
        case "messages":
            body |= {"max_tokens": 5000, "messages": [{"role": "user", "content": "Hi"}]}
            if "thinking" in recording.asked:
                body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
            if "edits" in recording.asked:
                body["context_management"] = {"edits": [{"type": "clear_tool_uses_20250919"}]}
            if "stop" in recording.asked:
                body["stop_sequences"] = [" the answer."]
        case "responses":
            body |= {"input": "Hi"}
            if "summary" in recording.asked:
                body["reasoning"] = {"summary": "detailed"}
            if "encrypted" in recording.asked:
                body["include"] = ["reasoning.encrypted_content"]
        case "chat":
            body |= {"messages": [{"role": "user", "content": "Hi"}]}
            if "usage" in recording.asked:
                body["stream_options"] = {"include_usage": True}
    return body


def chunk_kind(chunk: Any) -> str:
    """Returns the kind of a chunk of Chat Completions, which has no type."""
    if not chunk.get("choices"):
        return "usage" if chunk.get("usage") else "other"
    (choice,) = chunk["choices"]
    delta = choice["delta"]
    if choice.get("finish_reason"):
        return "finish"
    if delta.get("tool_calls"):
        return "call start" if delta["tool_calls"][0].get("id") else "call arguments"
    if delta.get("reasoning_content"):
        return "reasoning"
    return "content" if delta.get("content") else "start"


def shape(value: Any, key: str = "") -> Any:
    """Returns a value with types in place of texts and numbers."""
    if key in OPAQUE and isinstance(value, dict | list):
        return "object"
    match value:
        case dict():
            return {name: shape(inner, name) for name, inner in value.items()}
        case list():
            return [shape(inner) for inner in value[:1]]
        case None:
            return None
        case bool():
            return "boolean"
        case str():
            return f"={value}" if key in VALUES else "string"
    return "number"


def fields_of(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the type of each field by its path."""
    match value:
        case dict():
            for name, inner in value.items():
                yield from fields_of(inner, f"{path}.{name}" if path else name)
        case list():
            yield path, "array"
            for inner in value:
                yield from fields_of(inner, f"{path}[]")
        case _:
            yield path, value or "null"


def joined(events: Iterable[tuple[str, Any]]) -> list[Event]:
    """Joins consecutive events of a type, with the fields of all of them. Leaves out pings, which
    come by the clock."""
    found: list[tuple[str, dict[str, str]]] = []
    for kind, value in events:
        if kind == "ping":
            continue
        if not found or found[-1][0] != kind:
            found.append((kind, {}))
        fields = found[-1][1]
        for path, name in fields_of(value):
            if fields.get(path, "null") == "null":
                fields[path] = name
    return list(found)


def differences(vendors: Sequence[Event], ours: Sequence[Event]) -> Iterator[Difference]:
    """Yields the differences of two streams, event by event."""
    matcher = SequenceMatcher(
        None, [kind for kind, _ in vendors], [kind for kind, _ in ours], autojunk=False
    )
    for operation, start, end, our_start, our_end in matcher.get_opcodes():
        if operation == "equal":
            for (kind, theirs), (_, mine) in zip(
                vendors[start:end], ours[our_start:our_end], strict=True
            ):
                yield from field_differences(kind, theirs, mine)
            continue
        yield from (Difference(kind, "", "vendor") for kind, _ in vendors[start:end])
        yield from (Difference(kind, "", "ours") for kind, _ in ours[our_start:our_end])


def field_differences(
    kind: str, theirs: Mapping[str, str], mine: Mapping[str, str]
) -> Iterator[Difference]:
    """Yields the differences of two events of one type."""
    empty = [f"{path}." for fields in (theirs, mine) for path in fields if fields[path] == "null"]
    for path in sorted({*theirs, *mine}):
        vendor, our = theirs.get(path), mine.get(path)
        if vendor == our or path.startswith(tuple(empty)):
            continue
        if vendor is None or our is None:
            yield Difference(kind, path, "ours" if vendor is None else "vendor")
        elif "null" not in (vendor, our):
            yield Difference(kind, path, f"{vendor} {our}")


async def differences_of(recording: Recording) -> list[Difference]:
    """The differences of the recording from the frontend's stream where the model says the same
    blocks."""
    async with (
        serving(ReplayGateway(replay_of(recording))) as url,
        aiohttp.ClientSession() as http,
        http.post(url + CLIENTS[recording.api].path, json=request(recording)) as answer,
    ):
        assert answer.status == 200, await answer.text()
        events = SseParser().feed(await answer.read())
    ours: list[tuple[str, Any]] = [
        (chunk_kind(data) if recording.api == "chat" else data["type"], shape(data))
        for _, data in events
        if data
    ]
    return list(differences(joined(recording.events), joined(ours)))


async def test_streams_differ_from_the_vendors_only_as_declared_and_each_entry_is_needed(
    cases: Cases,
) -> None:
    needed = set()
    for recording in RECORDINGS:
        with cases.case(recording=recording.source):
            undeclared = []
            for one in await differences_of(recording):
                entries = [
                    at for at, entry in enumerate(DECLARED) if entry.covers(recording.api, one)
                ]
                needed |= {*entries}
                if not entries:
                    undeclared.append(one)
            assert undeclared == []
    assert [entry for at, entry in enumerate(DECLARED) if at not in needed] == []
    kinds = {(one.api, block) for one in RECORDINGS for block in one.blocks}
    assert {*itertools.product(APIS, ("text", "call", "reasoning"))} <= kinds

"""The requests of the three APIs, and what their answers contain, checked event by event. Pure.

A `Reading` is complete for a prefix of an answer too: of a broken connection, everything that came is judged.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tests.chaos.scripts import TOOL, TOOL_NAME, Block, Kind, Script

Api = Literal["messages", "chat", "responses"]
APIS: tuple[Api, ...] = get_args(Api)
PATHS: dict[Api, str] = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
MAX_TOKENS = 100_000


class IllFormed(Exception):
    """An answer breaks the rules of its API."""


@dataclass
class Reading:
    """What an answer contains."""

    blocks: list[Block] = field(default_factory=list)
    """As far as they came; of Chat, all reasoning, then all text, then the calls."""
    ends: int = 0
    """Terminal events: good ones and errors."""
    error: str = ""
    """The message of the error event."""
    reason: str = ""
    """Why the model ended."""
    tokens: int = 0
    """Output tokens that were counted."""
    thinking_signed: int = 0
    outputs: list[int] = field(default_factory=list)
    """Indices of the frames with output."""
    ids: list[str] = field(default_factory=list)
    """Of the calls."""

    def add(self, kind: Kind, text: str = "", name: str = "") -> None:
        self.blocks.append(Block(kind, text, name))

    def extend(self, text: str) -> None:
        last = self.blocks[-1]
        self.blocks[-1] = Block(last.kind, last.text + text, last.name)


@dataclass(frozen=True)
class Frame:
    """One SSE frame; a comment has neither name nor data."""

    name: str
    data: str

    def document(self) -> dict[str, Any]:
        found = json.loads(self.data)
        if not isinstance(found, dict):
            raise IllFormed(f"data is no object: {self.data[:80]}")
        return found


def request(api: Api, model: str, script: Script, *, stream: bool) -> dict[str, Any]:
    """A request that makes the script engine write `script`."""
    user = f"[[say]]{script.output}[[/say]]"
    function = {"name": TOOL_NAME, "description": "Runs a command.", "parameters": TOOL}
    messages = [{"role": "user", "content": user}]
    if api == "messages":
        tool: dict[str, Any] = {"name": TOOL_NAME, "description": "Runs a command.", "input_schema": TOOL}
        specific: dict[str, Any] = {"max_tokens": MAX_TOKENS, "messages": messages, "tools": [tool]}
    elif api == "chat":
        specific = {"messages": messages, "tools": [{"type": "function", "function": function}]}
        if stream:
            specific["stream_options"] = {"include_usage": True}
    else:
        specific = {"input": user, "tools": [{"type": "function", **function, "strict": False}]}
    return {"model": model, "stream": stream, **specific}


def expected_blocks(api: Api, blocks: Sequence[Block]) -> list[Block]:
    """What an answer of this API contains of a turn: Chat has no order between text and calls."""
    if api != "chat":
        return list(blocks)
    merged: list[Block] = []
    for kind in ("reasoning", "text"):
        text = "".join(block.text for block in blocks if block.kind == kind)
        if text:
            merged.append(Block(kind, text))
    return merged + [block for block in blocks if block.kind == "call"]


def expected_reason(api: Api, script: Script) -> str:
    if api == "responses":
        return "completed"
    calls, stop = {"messages": ("tool_use", "end_turn"), "chat": ("tool_calls", "stop")}[api]
    return calls if script.calls else stop


def split_frames(data: bytes, *, whole: bool) -> tuple[list[Frame], list[int]]:
    """The frames of a stream, and where each ends. Unless `whole`, the last may be cut off. Raises IllFormed."""
    frames, ends, at = [], [], 0
    while (end := data.find(b"\n\n", at)) >= 0:
        frames.append(_frame(data[at:end]))
        at = end + 2
        ends.append(at)
    if whole and at != len(data):
        raise IllFormed(f"the stream ends within an event: {data[at:][:80]!r}")
    return frames, ends


def _frame(data: bytes) -> Frame:
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise IllFormed(f"no UTF-8: {error}") from None
    if len(lines) == 1 and lines[0].startswith(":"):
        return Frame("", "")
    name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
    if len(lines) != 1 or not lines[0].startswith("data: "):
        raise IllFormed(f"not an event: {data[:120]!r}")
    return Frame(name, lines[0].removeprefix("data: "))


def read_stream(api: Api, frames: Sequence[Frame], *, whole: bool) -> Reading:
    """Checks the order of a stream's events. Raises IllFormed."""
    reading = Reading()
    readers: dict[Api, type[_Messages | _Chat | _Responses]] = {
        "messages": _Messages,
        "chat": _Chat,
        "responses": _Responses,
    }
    reader = readers[api](reading)
    try:
        for index, frame in enumerate(frames):
            if frame == Frame("", ""):
                continue
            before = len(reading.blocks), len(reading.blocks[-1].text) if reading.blocks else 0
            reader.take(frame)
            if reading.blocks and (len(reading.blocks), len(reading.blocks[-1].text)) != before:
                reading.outputs.append(index)
        if whole:
            reader.end()
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise IllFormed(f"{type(error).__name__}: {error}") from error
    if api == "chat":
        reading.blocks = expected_blocks("chat", reading.blocks)
    return reading


def require(truth: object, what: str) -> None:
    """Raises IllFormed."""
    if not truth:
        raise IllFormed(what)


class _Messages:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._open = False
        self._begun = self._delta = False

    def take(self, frame: Frame) -> None:
        data, reading = frame.document(), self._reading
        kind = data["type"]
        require(frame.name == kind, f"event {frame.name} has data of {kind}")
        if kind == "ping":
            return
        require(not reading.ends or kind in ("error", "message_stop"), f"{kind} after the end")
        if kind == "error":
            reading.ends += 1
            reading.error = data["error"]["message"]
            return
        require(self._begun == (kind != "message_start"), f"{kind}: order")
        if kind == "message_start":
            self._begun = True
        elif kind == "content_block_start":
            require(not self._open and not self._delta, "a block starts inside another")
            require(data["index"] == len(reading.blocks), "indices are not contiguous")
            block = data["content_block"]
            kinds: dict[str, Kind] = {"thinking": "reasoning", "text": "text", "tool_use": "call"}
            reading.add(kinds[block["type"]], name=block.get("name", ""))
            if block["type"] == "tool_use":
                reading.ids.append(block["id"])
            self._open = True
        elif kind == "content_block_delta":
            require(self._open and data["index"] == len(reading.blocks) - 1, "a delta outside of its block")
            self._piece(data["delta"])
        elif kind == "content_block_stop":
            require(self._open and data["index"] == len(reading.blocks) - 1, "a stop outside of its block")
            self._open = False
        elif kind == "message_delta":
            require(not self._open and not self._delta, "message_delta: order")
            self._delta = True
            reading.reason = data["delta"]["stop_reason"]
            reading.tokens = data["usage"]["output_tokens"]
        else:
            require(kind == "message_stop" and self._delta, f"{kind}: order")
            reading.ends += 1

    def _piece(self, delta: dict[str, Any]) -> None:
        field_of = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}
        kinds = {"thinking_delta": "reasoning", "text_delta": "text", "input_json_delta": "call"}
        if delta["type"] == "signature_delta":
            require(delta["signature"] and self._reading.blocks[-1].kind == "reasoning", "a signature out of place")
            self._reading.thinking_signed += 1
            return
        require(self._reading.blocks[-1].kind == kinds[delta["type"]], "a delta of another kind")
        self._reading.extend(delta[field_of[delta["type"]]])

    def end(self) -> None:
        if not self._reading.error:
            signed = sum(block.kind == "reasoning" for block in self._reading.blocks)
            require(self._reading.thinking_signed == signed, "one signature for each reasoning block")


class _Chat:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._id: str | None = None
        self._done = False

    def take(self, frame: Frame) -> None:
        reading = self._reading
        require(not self._done, "data after [DONE]")
        if frame.data == "[DONE]":
            require(reading.error or reading.reason, "[DONE] without a finish_reason")
            self._done = True
            reading.ends += not reading.error
            return
        data = frame.document()
        if "error" in data:
            reading.ends += 1
            reading.error = data["error"]["message"]
            return
        require(not reading.error, "a chunk after the error")
        first = self._id is None
        require(first or data["id"] == self._id, "another id")
        self._id = data["id"]
        if not data["choices"]:
            require(reading.reason and not reading.tokens, "usage: order")
            reading.tokens = data["usage"]["completion_tokens"]
            return
        (choice,) = data["choices"]
        require(not reading.reason, "a chunk after the finish_reason")
        delta = choice["delta"]
        require(first == (delta.get("role") == "assistant"), "one role, at the start")
        reasoning, content = delta.get("reasoning_content"), delta.get("content")
        if reasoning:
            self._text("reasoning", reasoning)
        if content:
            self._text("text", content)
        for call in delta.get("tool_calls") or ():
            self._call(call)
        reading.reason = choice["finish_reason"] or ""

    def _text(self, kind: Kind, text: str) -> None:
        if not self._reading.blocks or self._reading.blocks[-1].kind != kind:
            self._reading.add(kind)
        self._reading.extend(text)

    def _call(self, call: dict[str, Any]) -> None:
        reading = self._reading
        if "id" in call:
            require(call["index"] == len(reading.ids), "indices of calls are not contiguous")
            reading.ids.append(call["id"])
            reading.add("call", name=call["function"]["name"])
        require(call["index"] == len(reading.ids) - 1 and reading.blocks[-1].kind == "call", "arguments out of place")
        reading.extend(call["function"]["arguments"])

    def end(self) -> None:
        require(self._done or self._reading.error, "no [DONE]")


class _Responses:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._next = 0
        self._open = self._done = False
        self._items: list[dict[str, Any]] = []

    def take(self, frame: Frame) -> None:
        reading = self._reading
        require(not self._done, "data after [DONE]")
        if frame.data == "[DONE]":
            require(reading.ends, "[DONE] before the end")
            self._done = True
            return
        data = frame.document()
        kind = data["type"]
        require(frame.name == kind, f"event {frame.name} has data of {kind}")
        if kind == "keepalive":
            return
        require(data["sequence_number"] == self._next, f"sequence number {data['sequence_number']}, not {self._next}")
        self._next += 1
        require((kind == "response.created") == (self._next == 1), "response.created: order")
        require(not reading.ends or kind in ("error", "response.failed"), f"{kind} after the end")
        event = kind.removeprefix("response.")
        if event in ("completed", "incomplete", "failed") or kind == "error":
            self._last(event, data)
        elif event == "output_item.added":
            self._added(data)
        elif event == "output_item.done":
            require(self._open and data["output_index"] == len(reading.blocks) - 1, "an item ends out of place")
            require(_item_block(data["item"]) == reading.blocks[-1], "the item is not what its deltas were")
            self._items.append(data["item"])
            self._open = False
        elif event.endswith(".delta"):
            require(self._open and data["output_index"] == len(reading.blocks) - 1, "a delta outside of its item")
            reading.extend(data["delta"])
        elif event.endswith("text.done"):
            require(data["text"] == reading.blocks[-1].text, "the text is not what its deltas were")
        elif event == "function_call_arguments.done":
            require(data["arguments"] == reading.blocks[-1].text, "the arguments are not what their deltas were")

    def _added(self, data: dict[str, Any]) -> None:
        require(not self._open and data["output_index"] == len(self._reading.blocks), "items are not contiguous")
        item = data["item"]
        kinds: dict[str, Kind] = {"reasoning": "reasoning", "message": "text", "function_call": "call"}
        self._reading.add(kinds[item["type"]], name=item.get("name", ""))
        if item["type"] == "function_call":
            self._reading.ids.append(item["call_id"])
        self._open = True

    def _last(self, event: str, data: dict[str, Any]) -> None:
        reading = self._reading
        if event in ("error", "failed"):  # `error` comes before `response.failed`: together they are one end
            reading.ends += not reading.error
            reading.error = str(data.get("message") or (data.get("response") or {}).get("error", {}).get("message"))
            return
        reading.ends += 1
        reading.reason = data["response"]["status"]
        reading.tokens = data["response"]["usage"]["output_tokens"]
        require(data["response"]["output"] == self._items, "the response is not what its items were")

    def end(self) -> None:
        pass


def _item_block(item: dict[str, Any]) -> Block:
    if item["type"] == "function_call":
        return Block("call", item["arguments"], item["name"])
    content = item.get("content") or item.get("summary") or []
    return Block("reasoning" if item["type"] == "reasoning" else "text", "".join(part["text"] for part in content))


def read_document(api: Api, text: bytes) -> Reading:
    """An answer without streaming. Raises IllFormed."""
    reading = Reading(ends=1)
    try:
        document = json.loads(text)
        if api == "messages":
            for block in document["content"]:
                if block["type"] == "tool_use":
                    reading.ids.append(block["id"])
                    reading.add("call", json.dumps(block["input"], ensure_ascii=False), block["name"])
                else:
                    kind: Kind = "text" if block["type"] == "text" else "reasoning"
                    reading.add(kind, block[block["type"]])
            reading.reason, reading.tokens = document["stop_reason"], document["usage"]["output_tokens"]
        elif api == "chat":
            (choice,) = document["choices"]
            message = choice["message"]
            texts: tuple[tuple[Kind, Any], ...] = (
                ("reasoning", message.get("reasoning_content")),
                ("text", message["content"]),
            )
            for kind, value in texts:
                if value:
                    reading.add(kind, value)
            for call in message.get("tool_calls") or ():
                reading.ids.append(call["id"])
                reading.add("call", call["function"]["arguments"], call["function"]["name"])
            reading.reason, reading.tokens = choice["finish_reason"], document["usage"]["completion_tokens"]
        else:
            reading.blocks = [_item_block(item) for item in document["output"]]
            reading.ids = [item["call_id"] for item in document["output"] if item["type"] == "function_call"]
            reading.reason, reading.tokens = document["status"], document["usage"]["output_tokens"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise IllFormed(f"{type(error).__name__}: {error}") from error
    return reading

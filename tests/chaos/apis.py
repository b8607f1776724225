"""The requests of the three APIs, and what their answers contain, checked event by event. Pure.

A `Reading` is complete for a prefix of an answer too: of a broken connection, everything that came
is judged.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.conversation import Conversation, Message, Sampling, Text, ToolSpec
from tests.chaos.scripts import TOOL_NAME, Block, Script
from tests.kit.messages_client import TOOLS
from turnwire_tools.clients.answer import Api, ClientAnswer
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import IllFormed

MAX_TOKENS = 100_000


@dataclass
class Reading:
    """What an answer contains."""

    answer: ClientAnswer
    blocks: list[Block]
    """As far as they came; of Chat, all reasoning, then all text, then the calls."""
    outputs: list[int] = field(default_factory=list)
    """Indices of the frames with output."""

    @property
    def error(self) -> str:
        """The message of the error event."""
        return self.answer.problem or ""


@dataclass(frozen=True)
class Frame:
    """One SSE frame; a comment has neither name nor data."""

    name: str
    data: str


def request(api: Api, model: str, script: Script, *, stream: bool) -> bytes:
    """A request that makes the script engine write `script`."""
    schema: Any = TOOLS[0]["input_schema"]
    conversation = Conversation(
        model,
        [Message("user", [Text(f"[[say]]{script.output}[[/say]]")])],
        tools=[ToolSpec(TOOL_NAME, "Runs a command.", schema, strict=False)],
        sampling=Sampling(max_tokens=MAX_TOKENS if api == "messages" else None),
    )
    return CLIENTS[api].request(conversation, stream=stream)


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


def split_frames(data: bytes, *, whole: bool) -> tuple[list[Frame], list[int]]:
    """The frames of a stream, and where each ends. Unless `whole`, the last may be cut off. Raises
    IllFormed."""
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
        raise IllFormed(f"not UTF-8: {error}") from None
    if len(lines) == 1 and lines[0].startswith(":"):
        return Frame("", "")
    name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
    if len(lines) != 1 or not lines[0].startswith("data: "):
        raise IllFormed(f"not an event: {data[:120]!r}")
    return Frame(name, lines[0].removeprefix("data: "))


def read_stream(api: Api, frames: Sequence[Frame], *, whole: bool) -> Reading:
    """Checks the order of a stream's events. Raises IllFormed."""
    reader = CLIENTS[api].reader()
    outputs, written = list[int](), 0
    for index, frame in enumerate(frames):
        if frame == Frame("", ""):
            continue
        try:
            data = None if frame.data == "[DONE]" else json.loads(frame.data)
        except ValueError as error:
            raise IllFormed(f"not JSON: {error}") from None
        reader.event(frame.name, data)
        before, written = written, sum(1 + len(block.text) for block in reader.answer.blocks)
        if written != before:
            outputs.append(index)
    if whole:
        reader.finish()
    return Reading(reader.answer, expected_blocks(api, _blocks(reader.answer)), outputs)


def read_document(api: Api, text: bytes) -> Reading:
    """An answer without streaming. Raises IllFormed."""
    reader = CLIENTS[api].reader()
    try:
        reader.document(json.loads(text))
    except ValueError as error:
        raise IllFormed(f"not JSON: {error}") from None
    blocks = _blocks(reader.answer)
    if api == "messages":  # an input is an object there, which any client spells as it likes
        for number, block in enumerate(blocks):
            if block.kind == "call":
                spelled = json.dumps(json.loads(block.text), ensure_ascii=False)
                blocks[number] = Block("call", spelled, block.name)
    return Reading(reader.answer, blocks)


def _blocks(answer: ClientAnswer) -> list[Block]:
    return [Block(block.kind, block.text, block.full_name) for block in answer.blocks]

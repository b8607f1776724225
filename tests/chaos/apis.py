"""The requests of the three APIs, and what their answers contain, checked event by event. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from schemas.conversation import Conversation, Message, Sampling, Text, ToolSpec
from tests.chaos.scripts import TOOL_NAME, Block, Script
from tests.kit.messages_client import TOOLS
from turnwire_tools.clients.answer import Api, ClientAnswer
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import IllFormed, SseParser

MAX_TOKENS = 100_000


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


def read_stream(api: Api, data: bytes, *, whole: bool) -> ClientAnswer:
    """Checks the order of a stream's events. Unless `whole`, the last may be cut off. Raises
    IllFormed."""
    reader = CLIENTS[api].reader()
    try:
        events = SseParser().feed(data)
    except ValueError as error:
        raise IllFormed(f"not an event: {error}") from None
    for name, payload in events:
        reader.event(name, payload)
    if whole:
        if not data.endswith(b"\n\n"):
            raise IllFormed(f"the stream ends within an event: {data[-80:]!r}")
        reader.finish()
    return reader.answer


def read_document(api: Api, text: bytes) -> ClientAnswer:
    """An answer without streaming. Raises IllFormed."""
    reader = CLIENTS[api].reader()
    try:
        reader.document(json.loads(text))
    except ValueError as error:
        raise IllFormed(f"not JSON: {error}") from None
    return reader.answer


def received_blocks(api: Api, answer: ClientAnswer, *, stream: bool) -> list[Block]:
    """Returns the blocks that arrived; for Chat all reasoning, then all text, then the calls."""
    blocks = []
    for block in answer.blocks:
        text = block.text
        if api == "messages" and block.kind == "call" and not stream:
            # An input is an object there, which any client spells as it likes.
            text = json.dumps(json.loads(text), ensure_ascii=False)
        blocks.append(Block(block.kind, text, block.full_name))
    return expected_blocks(api, blocks)

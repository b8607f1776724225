"""Plays sessions of agents as their client: makes requests, and adds the answers to the next ones.
Pure."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, TypeAlias

from bench.apis import Tool, messages_tool
from bench.prompts import make_prompt, prose

Body: TypeAlias = dict[str, Any]
Event: TypeAlias = tuple[int, bytes]
"""When it was read (ns), and its bytes."""
PLAY = "[[play agent delay=0]]"
"""The model writes some words and a call of `read_file` (`bench/scripts`): 26 tokens."""
PROMPT_TOKENS = 52_000
SYSTEM_BYTES = 20_000
TOOLS = 5
TOOLS_BYTES = 12_000
TURN_TOKENS = 67
"""Tokens of a turn without the tool's result."""
BYTES_PER_TOKEN = 4.78
"""For the demo model's tokenizer on this text."""
LATER_BYTES = 2_000
"""Bytes of a tool's result in the measured turns."""


class AgentSession:
    """One session of the Messages API: `body`, then `take` its answer, and so on.

    The client returns what it received.
    """

    def __init__(self, head: bytes, messages: list[bytes], results: Iterator[str]) -> None:
        """`head`: the request up to its messages; `results`: tool results, one for each call."""
        self._head = head
        self._messages = messages
        self._results = results
        self._calls: Sequence[str] = ()
        """Ids of the last turn's calls."""

    @classmethod
    def begin(cls, model: str, seed: int, turn: int) -> "AgentSession":
        """A session with a prompt of about 52,000 tokens at `turn`. Sessions of different seeds
        share no prefix."""
        source = random.Random(f"session {seed}")
        size = int(
            (PROMPT_TOKENS / turn - TURN_TOKENS) * BYTES_PER_TOKEN
            - (SYSTEM_BYTES + TOOLS_BYTES) / turn
        )
        texts = _texts(source, chain(repeat(size, turn), repeat(LATER_BYTES)))
        return cls(_head(model, seed), [_encode({"role": "user", "content": next(texts)})], texts)

    def body(self) -> bytes:
        """The next request."""
        return b'%b,"messages":[%b]}' % (self._head, b",".join(self._messages))

    def take(self, events: Sequence[Event]) -> None:
        """Makes an answer and the result of its call part of the session. Raises ValueError for one
        without a call."""
        content = read_content(events)
        self._calls = [block["id"] for block in content if block["type"] == "tool_use"]
        if not self._calls:
            raise ValueError(f"an answer without a call: {content}")
        said = {"role": "assistant", "content": content}
        self._messages += [_encode(said), _encode(self._returned(self._results))]

    def fork(self, seed: int) -> "AgentSession":
        """The session up to its last answer, with other results from there on. Only after a
        turn."""
        texts = _texts(random.Random(f"fork {seed}"), repeat(LATER_BYTES))
        returned = _encode(self._returned(texts))
        forked = AgentSession(self._head, [*self._messages[:-1], returned], texts)
        forked._calls = self._calls
        return forked

    def _returned(self, results: Iterator[str]) -> Body:
        """The message with a result for each call of the last turn."""
        content = [
            {"type": "tool_result", "tool_use_id": call, "content": next(results)}
            for call in self._calls
        ]
        return {"role": "user", "content": content}


def read_content(events: Sequence[Event]) -> list[Body]:
    """Returns the blocks of an answer, as a client sends them back."""
    blocks: dict[int, Body] = {}
    inputs: dict[int, str] = {}
    for _, event in events:
        payload = event.partition(b"data:")[2].strip()
        if payload in (b"", b"[DONE]"):  # Dynamo ends streams of Messages with it, too
            continue
        data = json.loads(payload)
        if data["type"] == "content_block_start":
            blocks[data["index"]] = data["content_block"]
        elif data["type"] == "content_block_delta":
            at, delta = data["index"], data["delta"]
            inputs[at] = inputs.get(at, "") + delta.get("partial_json", "")
            for name in ("thinking", "text", "signature"):
                if name in delta:
                    blocks[at][name] = blocks[at].get(name, "") + delta[name]
    for at, block in blocks.items():
        if block["type"] == "tool_use":
            block["input"] = json.loads(inputs.get(at) or "{}")
    return [block for block in blocks.values() if block.get("text", "x").strip()]


def _texts(source: random.Random, sizes: Iterator[int]) -> Iterator[str]:
    """Texts of the user and of tools, which name the script."""
    for size in sizes:
        yield f"{prose(source, size)} {PLAY}"


def _head(model: str, seed: int) -> bytes:
    prompt = make_prompt("large", "same", "", seed)
    body: Body = {
        "model": model,
        "max_tokens": 4096,
        "stream": True,
        "thinking": {"type": "disabled"},
        "system": f"You are agent {seed}. {prompt.system[:SYSTEM_BYTES]}",
        "tools": [
            messages_tool(Tool(tool.name, f"Of agent {seed}. {tool.description}", tool.schema))
            for tool in prompt.tools[:TOOLS]
        ],
    }
    return _encode(body)[:-1]


def _encode(body: Body) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()

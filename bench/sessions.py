"""Plays sessions of agents as their client: makes requests, and adds the answers to the next ones.
Pure."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from bench.apis import Tool, messages_tool
from bench.prompts import make_prompt, prose
from bench.vllm.session import DIALECTS, Body, Event

DIALECT = DIALECTS["messages"]
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
        answer = DIALECT.read(events)
        if not answer.calls:
            raise ValueError(f"an answer without a call: {answer.text!r}")
        said, returned = DIALECT.turn(answer, [next(self._results) for _ in answer.calls])
        self._messages += [_encode(said), _encode(returned)]
        self._calls = [call.id for call in answer.calls]

    def fork(self, seed: int) -> "AgentSession":
        """The session up to its last answer, with other results from there on. Only after a
        turn."""
        texts = _texts(random.Random(f"fork {seed}"), repeat(LATER_BYTES))
        results = [
            {"type": "tool_result", "tool_use_id": call, "content": next(texts)}
            for call in self._calls
        ]
        forked = AgentSession(
            self._head, [*self._messages[:-1], _encode({"role": "user", "content": results})], texts
        )
        forked._calls = self._calls
        return forked


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

"""Long sessions and long prompts: how the time to the first token grows with turns and with tokens. Pure."""

import json
import random
from collections.abc import Callable
from typing import Any

from bench.apis import Api, Prompt
from bench.prompts import NUMBER, prose, schema

TURN_BYTES = 900
"""Of a tool's result in each turn; with the rest some 300 tokens a turn."""
SYSTEM_BYTES = 12_000
BYTES_PER_TOKEN = 4.5
"""Of the demo model's tokenizer on this text."""


def session_body(model: str, play: str, seed: int) -> Callable[[int], bytes]:
    """The request with `n` turns of the model behind it, of one session of the Messages API.

    Each begins with all of the one before, as an agent's do.
    """
    source = random.Random(f"session {seed}")
    system = f"Session {seed}. {prose(source, SYSTEM_BYTES)}"
    tools = [{"name": "read_file", "description": prose(source, 300), "input_schema": schema(source)}]
    turns: list[list[dict[str, Any]]] = []

    def body(count: int) -> bytes:
        while len(turns) < count:
            turns.append(_turn(source, len(turns)))
        messages = [message for turn in turns[:count] for message in turn]
        ask = {"role": "user", "content": [{"type": "text", "text": f"Please go on. [[play {play}]]"}]}
        return json.dumps(
            {
                "model": model,
                "system": [{"type": "text", "text": system}],
                "tools": tools,
                "messages": [*messages, ask],
                "max_tokens": 4096,
                "thinking": {"type": "disabled"},
                "stream": True,
            },
            separators=(",", ":"),
        ).encode()

    return body


def long_body(api: Api, model: str, tokens: int, play: str, *, head: bool, seed: int) -> Callable[[int], bytes]:
    """A prompt of about `tokens` tokens; the n-th differs from others at its end, with `head` from its beginning."""
    first = f"Session {NUMBER.decode()}. " if head else ""
    system = first + prose(random.Random(f"long {tokens} {seed}"), int(tokens * BYTES_PER_TOKEN))
    prompt = Prompt(f"Please go on ({NUMBER.decode()}). [[play {play}]]", system)
    body = json.dumps(api.body(prompt, model), separators=(",", ":")).encode()
    run = seed * 10_000 % 100_000_000
    return lambda number: body.replace(NUMBER, b"%08d" % (run + number))


def _turn(source: random.Random, number: int) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": f"toolu_{number:08d}", "name": "read_file", "input": {"path": f"src/{number}.py"}}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": prose(source, TURN_BYTES)}
    return [
        {"role": "user", "content": [{"type": "text", "text": prose(source, 120)}]},
        {"role": "assistant", "content": [{"type": "text", "text": prose(source, 200)}, call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [{"type": "text", "text": prose(source, 150)}]},
    ]

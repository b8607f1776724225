"""Makes sessions of agents from a seed, which grow request by request."""

import random
from collections.abc import Iterator

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    Thinking,
    ToolSpec,
)

_TOOLS = [
    ToolSpec(
        "read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}
    ),
    ToolSpec(
        "run", "Runs a command.", {"type": "object", "properties": {"command": {"type": "string"}}}
    ),
]
_REQUESTS = 9
_WORDS = (
    "so",
    "the file",
    "reads\n\nwell",
    " 12 ",
    "done.",
    "</think>",
    "<b>",
    "{}",
    "look:",
    "a\n",
)


def session(source: random.Random, number: int) -> Iterator[Conversation]:
    """The requests of one session, each longer than the last."""
    tools = _TOOLS if number % 4 else []
    thinking: Thinking = Thinking(
        ("enabled", "default", "disabled")[number % 3 if number > 2 else 0]
    )
    system = [Text("Be brief.")] if number % 5 else []
    messages = [Message("user", [_text(source)])]
    reasons, ends = source.choice((0.9, 0.5, 0.1)), source.choice((0.05, 0.2, 0.5))
    for _ in range(_REQUESTS):
        for _ in range(source.choice((1, 1, 1, 2, 5))):
            messages = [*messages, *_step(source, len(messages), reasons, ends if tools else 1.0)]
        yield Conversation("trial", messages, system=system, tools=tools, thinking=thinking)


def _step(source: random.Random, number: int, reasons: float, ends: float) -> list[Message]:
    """A turn of the model and the answer to it."""
    parts: list[Part] = [Reasoning(_text(source).text)] if source.random() < reasons else []
    if source.random() < ends:
        return [Message("assistant", [*parts, _text(source)]), Message("user", [_text(source)])]
    calls: list[Call] = []
    for at in range(source.choice((1, 1, 1, 2, 3))):
        if source.random() < 0.4:
            parts.append(_text(source))
        elif at and source.random() < 0.3:
            parts.append(Reasoning(_text(source).text))
        calls.append(_call(source, f"toolu_{number}x{at}"))
        parts.append(calls[-1])
    after: list[Message] = [
        Message("tool", [Result(call.call_id, [_text(source)]) for call in calls])
    ]
    if source.random() < 0.1:
        after.append(Message(source.choice(("user", "system")), [_text(source)]))
    return [Message("assistant", parts), *after]


def _call(source: random.Random, call_id: str) -> Call:
    if source.random() < 0.5:
        return Call(call_id, "read", f'{{"path": "file{source.randrange(1000)}.py"}}')
    return Call(
        call_id,
        "run",
        f'{{"command": "ls \\"{source.randrange(1000)}\\"", "n": {source.choice((1, 2.5))}}}',
    )


def _text(source: random.Random) -> Text:
    return Text(
        " ".join(
            (str(source.randrange(10**6)), source.choice(_WORDS), str(source.randrange(10**6)))
        )
    )

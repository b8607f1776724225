"""Turns are routed to the worker that has their prefix: two workers, two preprocessors, real
processes."""

import asyncio
import itertools
from typing import Any

from tests.kit.messages_client import Answer, Client, body, say

BLOCK = 64
"""No engine under test has larger KV blocks."""


def tokens(usage: dict[str, Any]) -> tuple[int, int]:
    """Prompt tokens, and those of them that were cached."""
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


async def session(client: Client, name: str, turns: int) -> list[Answer]:
    """A conversation of several turns after its own long system prompt."""
    system = " ".join(f"{name} rule {i}" for i in range(600))
    outputs = say(*(f"\n</think>\n\nanswer {i} of {name}" for i in range(turns)))
    request = body(outputs, system=system)
    answers: list[Answer] = []
    for turn in range(turns):
        answers.append(await client.stream(request))
        request["messages"] += [answers[-1].message, {"role": "user", "content": f"go on {turn}"}]
    return answers


async def test_a_session_finds_its_prefix_again(client: Client) -> None:
    sessions = await asyncio.gather(*(session(client, f"s{i}", 3) for i in range(6)))
    for answers in sessions:
        assert tokens(answers[0].usage)[1] < 1000, "sessions have different system prompts"
        for before, answer in itertools.pairwise(answers):
            known, _ = tokens(before.usage)
            first = tokens(answer.events[0].data["message"]["usage"])
            assert first == tokens(answer.usage), "the stream begins with its cached part"
            assert first[1] > known - 2 * BLOCK, "another worker has its prefix"

"""Turns are routed to the worker that has their prefix: two workers, two preprocessors, real
processes."""

import asyncio
import itertools
from typing import Any

from tests.kit.messages_client import Answer, Client, body, say

BLOCK = 64
"""No engine under test has larger KV blocks."""


def tokens(answer: Answer) -> tuple[int, int]:
    """(prompt tokens, those of them that were cached)"""
    return _tokens(answer.usage)


def first_tokens(answer: Answer) -> tuple[int, int]:
    """The token counts in the stream's first event."""
    return _tokens(answer.events[0].data["message"]["usage"])


def _tokens(usage: dict[str, Any]) -> tuple[int, int]:
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


async def session(client: Client, name: str, turns: int) -> list[Answer]:
    """A conversation of several turns after its own long system prompt."""
    system = " ".join(f"{name} rule {i}" for i in range(600))
    messages = [
        {
            "role": "user",
            "content": say(*(f"\n</think>\n\nanswer {i} of {name}" for i in range(turns))),
        }
    ]
    answers: list[Answer] = []
    for turn in range(turns):
        request = body("", system=system)
        request["messages"] = list(messages)
        answers.append(await client.stream(request))
        messages += [answers[-1].message, {"role": "user", "content": f"go on {turn}"}]
    return answers


async def test_a_session_finds_its_prefix_again(client: Client) -> None:
    sessions = await asyncio.gather(*(session(client, f"s{i}", 4) for i in range(6)))
    for answers in sessions:
        assert tokens(answers[0])[1] < 1000, "sessions have different system prompts"
        for before, answer in itertools.pairwise(answers):
            known = tokens(before)[0]
            assert tokens(answer)[1] > known - 2 * BLOCK, (
                "the turn went to a worker that does not hold its prefix"
            )
            assert first_tokens(answer)[0] == tokens(answer)[0]
            assert first_tokens(answer)[1] > known - 2 * BLOCK, (
                "the stream began without its cached part"
            )

"""Compactions of conversations that are larger than the context window."""

import random
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.conversation import Conversation, Text
from schemas.errors import ContextOverflow
from services.frontend.turns.compaction import SUMMARIZE
from services.frontend.turns.interfaces import Admitted, TurnSink
from tests.kit.events import finish, text
from tests.kit.frontend import MODEL, FakeGateway, FakeTurn, serving

WINDOW = 1000
NEEDED = 60
"""What an answer needs, in words."""


def words(conversation: Conversation) -> int:
    parts = [part for message in conversation.messages for part in message.parts]
    return sum(len(part.text.split()) for part in parts if isinstance(part, Text))


class SmallWindow(FakeGateway):
    """Counts a word as a token, and refuses a prompt that leaves too little room."""

    def __init__(self) -> None:
        super().__init__(lambda: [[*text(0, "They want tea."), finish(1)]])

    async def count(self, admitted: Admitted) -> int:
        await super().count(admitted)
        return words(admitted.conversation)

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> FakeTurn:
        if words(admitted.conversation) > WINDOW - NEEDED:
            details = {"max_prompt_tokens": WINDOW - NEEDED}
            raise ContextOverflow(
                "prompt is too long", code="context_length_exceeded", details=details
            )
        return await super().open(admitted, sink, turn_id=turn_id)


def talk(seed: int) -> list[dict[str, str]]:
    """A conversation with more words than half of the window, in which the last step may have gone
    far beyond it."""
    rng = random.Random(seed)
    messages: list[dict[str, str]] = []
    total = 0
    while total < rng.choice([600, 900, 960, 990, 1400, 3000]):
        size = rng.choice([1, 20, 100, 400])
        role = "assistant" if len(messages) % 2 else "user"
        messages.append({"role": role, "content": " ".join(["word"] * size)})
        total += size
    return [
        *messages,
        *([{"role": "assistant", "content": "Yes?"}] if len(messages) % 2 else []),
        HELP,
    ]


HELP = {"role": "user", "content": "Help me."}
MESSAGES: dict[str, Any] = {"model": MODEL, "max_tokens": 9}
TRIGGER = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 500}}
THRESHOLD = [{"type": "compaction", "compact_threshold": 500}]


def compactions(said: list[dict[str, str]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Each way to compact a conversation: path and body."""
    paused = {**TRIGGER, "pause_after_compaction": True}
    return {
        "messages": (
            "/v1/messages",
            {**MESSAGES, "messages": said, "context_management": {"edits": [TRIGGER]}},
        ),
        "messages, pause": (
            "/v1/messages",
            {**MESSAGES, "messages": said, "context_management": {"edits": [paused]}},
        ),
        "threshold": (
            "/v1/responses",
            {"model": MODEL, "input": said, "context_management": THRESHOLD},
        ),
        "trigger": (
            "/v1/responses",
            {"model": MODEL, "input": [*said, {"type": "compaction_trigger"}]},
        ),
        "compact": ("/v1/responses/compact", {"model": MODEL, "input": said}),
    }


@pytest.mark.parametrize("way", compactions([]))
async def test_compaction_does_not_fail_of_the_length_that_it_removes(way: str) -> None:
    async with serving(SmallWindow()) as served, ClientSession(served.url) as http:
        for seed in range(25):
            said = talk(seed)
            served.gateway.turns.clear()
            path, body = compactions(said)[way]
            async with http.post(path, json=body) as response:
                assert response.status == 200, (seed, await response.text())
            summary = served.gateway.turns[0].conversation
            assert summary.messages[-1].parts == [Text(SUMMARIZE)]
            kept = [
                part.text
                for message in summary.messages[:-1]
                for part in message.parts
                if isinstance(part, Text)
            ]
            whole = [message["content"] for message in said]
            assert kept == whole[len(whole) - len(kept) :], "the oldest are left out"
            if sum(len(one.split()) for one in [*whole, SUMMARIZE]) <= WINDOW - NEEDED:
                assert kept == whole


async def test_request_that_is_not_compacted_is_refused_as_before() -> None:
    long = [{"role": "user", "content": "word " * 2000}]
    async with serving(SmallWindow()) as served, ClientSession(served.url) as http:
        for path, body in (
            ("/v1/messages", {**MESSAGES, "messages": long}),
            ("/v1/responses", {"input": long}),
        ):
            async with http.post(path, json={"model": MODEL, **body}) as response:
                assert response.status == 400

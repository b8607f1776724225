"""Compactions of conversations that are larger than the context window."""

from typing import Any

import pytest

from schemas.conversation import Conversation, Message, Result, Text
from schemas.errors import ContextOverflow
from services.frontend.turns.compaction import SUMMARIZE
from services.frontend.turns.shortening import remove_messages
from tests.kit.bodies import messages, responses
from tests.kit.conversations import assistant, call, conversation, result, user
from tests.kit.events import finish, text
from tests.kit.frontend import FakeGateway, FakeTurn, serving

WINDOW = 1000
NEEDED = 60
"""What an answer needs, in words."""


def texts(conversation: Conversation) -> list[str]:
    parts = [part for message in conversation.messages for part in message.parts]
    return [part.text for part in parts if isinstance(part, Text)]


def words(conversation: Conversation) -> int:
    return sum(len(text.split()) for text in texts(conversation))


def small_window() -> FakeGateway:
    """Counts a word as a token, and refuses a prompt that leaves too little room."""

    async def check(turn: FakeTurn) -> None:
        if words(turn.conversation) > WINDOW - NEEDED:
            gateway.turns.remove(turn)
            details = {"max_prompt_tokens": WINDOW - NEEDED}
            raise ContextOverflow("too long", code="context_length_exceeded", details=details)

    answer = [*text(0, "They want tea."), finish(1)]
    gateway = FakeGateway(lambda: [answer], on_turn=check, size=words)
    return gateway


SIZES = [[400, 200], [400, 400, 100, 20], [20, 900], [900, 1, 400, 100], [400] * 8]
"""Words of the messages before the last one: of conversations that fit, and do not."""


def talk(sizes: list[int]) -> list[dict[str, str]]:
    messages = [
        {"role": "assistant" if at % 2 else "user", "content": " ".join(["word"] * size)}
        for at, size in enumerate(sizes)
    ]
    return [*messages, {"role": "user", "content": "Help me."}]


TRIGGER = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 500}}
THRESHOLD = [{"type": "compaction", "compact_threshold": 500}]


def compactions(said: list[dict[str, str]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Each way to compact a conversation: path and body."""
    edits = {"edits": [TRIGGER]}
    triggered = responses(*said, {"type": "compaction_trigger"})
    return {
        "messages": ("/v1/messages", messages(*said, context_management=edits)),
        "threshold": ("/v1/responses", responses(*said, context_management=THRESHOLD)),
        "trigger": ("/v1/responses", triggered),
        "compact": ("/v1/responses/compact", responses(*said)),
    }


@pytest.mark.parametrize("way", compactions([]))
async def test_compaction_does_not_fail_of_the_length_that_it_removes(way: str) -> None:
    async with serving(small_window()) as served:
        for sizes in SIZES:
            said = talk(sizes)
            served.gateway.turns.clear()
            reply = await served.post(*compactions(said)[way])
            assert reply.status == 200, (sizes, reply.text)
            *kept, request = texts(served.gateway.conversations[0])
            assert request == SUMMARIZE
            whole = [message["content"] for message in said]
            assert kept == whole[len(whole) - len(kept) :], "the oldest are left out"
            if sum(len(one.split()) for one in [*whole, SUMMARIZE]) <= WINDOW - NEEDED:
                assert kept == whole


def test_results_go_with_the_messages_of_their_calls() -> None:
    """What stands beside a result stays."""
    both = Message("tool", [Result("c1", [Text("seen")]), Result("c2", [Text("heard")])])
    one, two = assistant(call(call_id="c1")), assistant(call(call_id="c2"))
    asked = conversation(user("Look."), one, two, both, result("again", "c1"), user("Well?"))
    kept = [user("Look."), two, result("heard", "c2"), user("Well?")]
    assert remove_messages(asked, [1]).messages == kept

"""Searches that the client does not see: it gets one answer without them, and they are in the
prompts of its next requests."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from schemas.conversation import Call, Message, Reasoning, Result, Text, ToolReference
from schemas.events import TurnEvent
from services.frontend.hosted.tool_search import MAX_FOUND
from services.runtime.config import FrontendConfig
from tests.frontend.hosted.hosted_frontend import IDS
from tests.kit.bodies import (
    Json,
    assistant,
    chat,
    chat_result,
    chat_tool,
    function,
    function_output,
    messages,
    responses,
    tool,
    tool_result,
    user,
)
from tests.kit.events import call, finish, reasoning, text
from tests.kit.frontend import FakeGateway, Served, in_turn, serving

NAMES = ["read", "write", "send_mail", "read_mail", "book_room"]
LISTED = 2


@dataclass(frozen=True)
class Session:
    """How a client of an API continues a session."""

    path: str
    request: Callable[..., Json]
    tool: Callable[..., Json]
    returned: Callable[[Any], list[Json]]
    """The history's part of an answer."""
    result: Callable[[str, str], Json]


def _chat_answer(answer: Any) -> list[Json]:
    return [answer["choices"][0]["message"]]


SESSIONS = {
    "chat": Session("/v1/chat/completions", chat, chat_tool, _chat_answer, chat_result),
    "messages": Session(
        "/v1/messages",
        messages,
        tool,
        lambda answer: [assistant(*answer["content"])],
        lambda id, seen: user(tool_result(id, seen)),
    ),
    "responses": Session(
        "/v1/responses", responses, function, lambda answer: answer["output"], function_output
    ),
}


def search(block: int, query: str, id: str) -> list[TurnEvent]:
    return call(block, "tool_search", json.dumps({"query": query}), call_id=id)


def searched(query: str, id: str) -> Call:
    return Call(id, "tool_search", json.dumps({"query": query}))


def found(id: str, *names: str) -> Message:
    return Message("tool", [Result(id, [*map(ToolReference, names)], name="tool_search")])


LOOKING: list[TurnEvent] = [
    *reasoning(0, "I need mail.", seal="c2VhbDE"),
    *text(1, "I look."),
    *search(2, "mail", IDS[0]),
    finish(3),
]
CALLING: list[TurnEvent] = [
    *reasoning(0, "Now send.", seal="c2VhbDI"),
    *text(1, "I send."),
    *call(2, "send_mail", '{"a": "x"}', call_id=IDS[1]),
    finish(3),
]
DONE: list[TurnEvent] = [*text(0, "Sent."), finish(1)]


async def ask(served: Served, session: Session, *history: Json, **fields: Any) -> Any:
    tools = [session.tool(name) for name in NAMES]
    reply = await served.post(session.path, session.request(*history, tools=tools, **fields))
    assert reply.status == 200, reply.text
    return reply.json


def deferring(gateway: FakeGateway) -> Any:
    return serving(gateway, FrontendConfig(defer_tools=LISTED))


@pytest.mark.parametrize("api", SESSIONS)
async def test_search_is_hidden_now_and_there_next_time(api: str) -> None:
    session = SESSIONS[api]
    gateway = in_turn(LOOKING, CALLING, DONE, DONE)
    async with deferring(gateway) as served:
        first = await ask(served, session, user("Mail Ann."))
        history = [user("Mail Ann."), *session.returned(first)]
        assert "tool_search" not in json.dumps(first)
        live = gateway.conversations[-1]
        await ask(served, session, *history, session.result(IDS[1], "ok"))
    assert [tool.deferred for tool in live.tools] == [False, False, True, True, True, False]
    assert live.messages[1:] == [
        Message(
            "assistant",
            [Reasoning("I need mail.", "c2VhbDE"), Text("I look."), searched("mail", IDS[0])],
        ),
        found(IDS[0], "send_mail", "read_mail"),
    ]
    again = gateway.conversations[-1].messages
    assert again[: len(live.messages)] == live.messages
    turn, result = again[len(live.messages) :]
    assert [part.text for part in turn.parts if isinstance(part, Text)] == ["I send."]
    assert [part.call_id for part in turn.parts if isinstance(part, Call)] == [IDS[1]]
    assert result.role == "tool"
    assert MAX_FOUND > 2

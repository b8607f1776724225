"""Searches that the client does not see: it gets one answer without them, and they are in the
prompts of its next requests."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from schemas.conversation import Call, Message, Reasoning, Result, Text, ToolReference
from schemas.events import TurnEvent
from services.frontend.turns.hidden.memory import HiddenMemory
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.hosted.hosted_frontend import IDS, hosted
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
from tests.kit.events import USAGE, call, finish, reasoning, text
from tests.kit.frontend import FakeGateway, Served, in_turn, serving

NAMES = ["read", "write", "send_mail", "list_mail", "book_room"]
LISTED = 2
STARTS = {"content_block_start", "response.output_item.added"}


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
        found(IDS[0], "send_mail", "list_mail"),
    ]
    again = gateway.conversations[-1].messages
    assert again[: len(live.messages)] == live.messages
    turn, result = again[len(live.messages) :]
    assert [part.text for part in turn.parts if isinstance(part, Text)] == ["I send."]
    assert [part.call_id for part in turn.parts if isinstance(part, Call)] == [IDS[1]]
    assert result.role == "tool"


@pytest.mark.parametrize("api", SESSIONS)
async def test_stream_has_no_gap(api: str) -> None:
    session = SESSIONS[api]
    gateway = in_turn(LOOKING, CALLING)
    async with deferring(gateway) as served:
        tools = [session.tool(name) for name in NAMES]
        body = session.request(user("Mail Ann."), tools=tools, stream=True)
        if api == "chat":
            body["stream_options"] = {"include_usage": True}
        reply = await served.post(session.path, body)
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line[:7] == "data: {"]
    assert IDS[0] not in reply.text
    assert "tool_search" not in reply.text
    starts = [event for event in events if event.get("type") in STARTS]
    indices = [event.get("index", event.get("output_index")) for event in starts]
    assert indices == ([] if api == "chat" else [0, 1, 2, 3, 4])
    usage = [event["usage"] for event in map(_holder_of_usage, events) if event.get("usage")][-1]
    assert usage.get("output_tokens", usage.get("completion_tokens")) == 2 * USAGE.output
    assert "server_tool_use" not in usage


def _holder_of_usage(event: Any) -> Any:
    return event.get("response", event)


async def test_text_answer_is_found_by_its_text() -> None:
    gateway = in_turn(LOOKING, DONE, DONE)
    session = SESSIONS["chat"]
    async with deferring(gateway) as served:
        first = await ask(served, session, user("Mail Ann."))
        live = gateway.conversations[-1].messages
        returned = first["choices"][0]["message"]
        assert returned["content"] == "I look.Sent."
        changed = {"role": "assistant", "content": returned["content"] + "\n"}
        await ask(served, session, user("Mail Ann."), changed, user("Thanks."))
    again = gateway.conversations[-1].messages
    assert again[: len(live)] == live
    assert again[len(live)] == Message("assistant", [Text("Sent.\n")])


async def test_text_answer_after_calls_is_found_by_its_history() -> None:
    """Each session searches before its call, and in the turn that ends its answer."""
    session = SESSIONS["chat"]
    again: list[TurnEvent] = [*text(0, "Once more."), *search(1, "mail", IDS[2]), finish(2)]
    gateway = in_turn(LOOKING, CALLING, again, DONE, DONE)
    async with deferring(gateway) as served:
        first = await ask(served, session, user("Mail Ann."))
        history = [user("Mail Ann."), *session.returned(first), session.result(IDS[1], "ok")]
        second = await ask(served, session, *history)
        live = gateway.conversations[-1].messages
        pruned = [*history[:-1], session.result(IDS[1], "cleared")]
        await ask(served, session, *pruned, *session.returned(second), user("Thanks."))
    restored = gateway.conversations[-1].messages
    assert restored[len(live) - 2 : len(live)] == live[-2:]
    assert restored[len(live)] == Message("assistant", [Text("Sent.")])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_answer_of_another_session_is_not_put_back(order: tuple[int, int]) -> None:
    found_it: list[TurnEvent] = [*search(0, "mail", IDS[0]), finish(1)]
    answers = [[found_it, DONE], [DONE]]
    gateway = in_turn(*answers[order[0]], *answers[order[1]], DONE)
    session = SESSIONS["chat"]
    async with deferring(gateway) as served:
        for _ in order:
            last = await ask(served, session, user("Mail Ann."))
        await ask(served, session, user("Mail Ann."), *session.returned(last), user("Thanks."))
    texts = [Message("assistant", [Text("Sent.")])]
    assert gateway.conversations[-1].messages[1:-1] == texts


async def test_search_beside_a_call_of_the_client() -> None:
    both = [
        *call(0, "read", "{}", call_id=IDS[1]),
        *search(1, "mail", IDS[2]),
        *call(2, "write", "{}", call_id=IDS[3]),
        finish(3),
    ]
    gateway = in_turn(both, DONE)
    session = SESSIONS["chat"]
    async with deferring(gateway) as served:
        first = await ask(served, session, user("Mail Ann."))
        message = first["choices"][0]["message"]
        assert [made["index"] for made in message["tool_calls"] if "index" in made] == []
        assert [made["id"] for made in message["tool_calls"]] == [IDS[1], IDS[3]]
        results = [session.result(IDS[1], "1"), session.result(IDS[3], "2")]
        await ask(served, session, user("Mail Ann."), message, *results)
    _, turn, seen = gateway.conversations[-1].messages
    ids = [part.call_id for part in turn.parts if isinstance(part, Call)]
    assert ids == IDS[1:4]
    assert [part.call_id for part in seen.parts if isinstance(part, Result)] == ids


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
async def test_answer_does_not_need_the_store(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("the store is broken")

    monkeypatch.setattr(HiddenMemory, "keep", fail)
    beside = [*call(0, "read", "{}", call_id=IDS[1]), *search(1, "mail", IDS[2]), finish(2)]
    gateway = in_turn(LOOKING, DONE) if reason == "stop" else in_turn(beside)
    async with deferring(gateway) as served:
        answer = await ask(served, SESSIONS["chat"], user("Mail Ann."))
    assert answer["choices"][0]["finish_reason"] == reason


async def test_required_call_is_one_of_the_client() -> None:
    gateway = in_turn([*search(0, "mail", IDS[0]), finish(1)], CALLING)
    session = SESSIONS["chat"]
    async with deferring(gateway) as served:
        await ask(served, session, user("Mail Ann."), tool_choice="required")
    assert [one.tool_choice.mode for one in gateway.conversations] == ["any", "any"]


@pytest.mark.parametrize("api", SESSIONS)
async def test_search_of_the_last_round_is_left_out(api: str) -> None:
    gateway = in_turn([*search(0, "mail", IDS[0]), finish(1)], LOOKING)
    async with serving(gateway, FrontendConfig(defer_tools=LISTED, web_max_rounds=1)) as served:
        answer = await ask(served, SESSIONS[api], user("Mail Ann."))
    assert len(gateway.turns) == 2
    assert "tool_search" not in json.dumps(answer)
    assert "I look." in json.dumps(answer)
    assert answer.get("stop_reason", "end_turn") == "end_turn"
    if api == "chat":
        assert answer["choices"][0]["finish_reason"] == "stop"


async def test_last_round_of_a_required_call_has_no_search() -> None:
    gateway = in_turn([*search(0, "mail", IDS[0]), finish(1)], CALLING)
    async with serving(gateway, FrontendConfig(defer_tools=LISTED, web_max_rounds=1)) as served:
        await ask(served, SESSIONS["chat"], user("Mail Ann."), tool_choice="required")
    assert gateway.conversations[-1].tool_choice.allowed == NAMES


async def test_allowed_tools_may_be_searched() -> None:
    gateway = in_turn([*search(0, "mail", IDS[0]), finish(1)], CALLING)
    allowed = [{"type": "function", "name": name} for name in ("read", "send_mail")]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    async with deferring(gateway) as served:
        answer = await ask(served, SESSIONS["responses"], user("Mail Ann."), tool_choice=choice)
    assert len(gateway.turns) == 2
    assert "tool_search" not in json.dumps(answer["output"])


async def test_usage_has_the_prompt_of_the_last_turn() -> None:
    gateway = in_turn(LOOKING, CALLING)
    async with deferring(gateway) as served:
        answer = await ask(served, SESSIONS["chat"], user("Mail Ann."))
        metrics = await served.get("/metrics")
    usage = answer["usage"]
    assert usage["prompt_tokens"] == USAGE.prompt
    assert usage["completion_tokens"] == 2 * USAGE.output
    assert f"{2.0 * USAGE.prompt}" in metrics.text


@pytest.mark.parametrize("api", SESSIONS)
async def test_counts_are_of_the_prompt_of_the_turn(api: str) -> None:
    paths = {
        "chat": "/tokenize",
        "messages": "/v1/messages/count_tokens",
        "responses": "/v1/responses/input_tokens",
    }
    session = SESSIONS[api]
    gateway = in_turn(LOOKING, CALLING, DONE)
    async with deferring(gateway) as served:
        first = await ask(served, session, user("Mail Ann."))
        history = [user("Mail Ann."), *session.returned(first), session.result(IDS[1], "ok")]
        tools = [session.tool(name) for name in NAMES]
        counted = session.request(*history, tools=tools)
        counted.pop("max_tokens", None)
        reply = await served.post(paths[api], counted)
        assert reply.status == 200, reply.text
        await ask(served, session, *history)
    conversation = gateway.counted[0] if gateway.counted else gateway.tokenized[0][2]
    assert conversation is not None
    assert conversation.messages == gateway.conversations[-1].messages
    assert conversation.tools == gateway.conversations[-1].tools


async def test_token_ids_are_of_one_turn() -> None:
    gateway = in_turn(DONE)
    async with deferring(gateway) as served:
        await ask(served, SESSIONS["chat"], user("Mail Ann."), return_token_ids=True)
    assert not any(tool.deferred or tool.hosted for tool in gateway.conversations[-1].tools)


async def test_web_search_of_chat_comes_back() -> None:
    web = call(0, "web_search", '{"query": "tides"}', call_id=IDS[0])
    gateway = in_turn([*web, finish(1)], DONE, DONE)
    async with hosted(gateway) as (served, _):
        body = chat(user("When?"), web_search_options={})
        first = await served.post("/v1/chat/completions", body)
        message = first.json["choices"][0]["message"]
        assert message["content"] == "Sent."
        live = gateway.conversations[-1].messages
        again = chat(user("When?"), message, user("Sure?"), web_search_options={})
        await served.post("/v1/chat/completions", again)
    assert gateway.conversations[-1].messages[: len(live)] == live
    assert len(live) == 3

"""Hosted tools over HTTP: what each API sends, what the provider gets, and what the model reads now
and next time."""

import json
from typing import Any

from schemas.conversation import Call, Message, Reasoning, Result, Text
from schemas.errors import ContextOverflow, Overloaded
from services.frontend.turns.hosted.hosted_turns import next_turn_id
from tests.frontend.hosted.hosted_frontend import (
    FIRST,
    FOUND,
    IDS,
    LAST,
    LOOK,
    SEARCH,
    body,
    hosted,
    kinds,
    last,
    message,
    search,
)
from tests.kit.bodies import assistant, responses, text, user
from tests.kit.events import call, finish
from tests.kit.frontend import in_turn
from tests.kit.search_provider import PAGES

RESPONSE = responses(tools=[{"type": "web_search"}])


def found(*ids: str) -> Message:
    """The results of searches."""
    return Message("tool", [Result(id, [Text(FOUND)], name="web_search") for id in ids])


def going_on(answer: Any, *said: Any) -> list[Any]:
    """The messages of the next request: the answer returned, and what the user says then."""
    made = [*body()["messages"], assistant(*answer["content"])]
    return [*made, user(*said)] if said else made


def searched(id: str, query: str) -> Call:
    return Call(id, "web_search", json.dumps({"query": query}))


async def test_messages_streams_all_turns_as_one_message() -> None:
    import anthropic

    gateway = in_turn(FIRST, LAST, FIRST, LAST)
    async with hosted(gateway) as (served, stub):
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="any", max_retries=0)
        async with client, client.messages.stream(**body({**SEARCH, "max_uses": 3})) as stream:
            events = [event.type async for event in stream]
            answer = await stream.get_final_message()
        again = await message(served, body(SEARCH))
    assert events.count("message_stop") == 1
    assert kinds(answer.to_dict()) == (
        "thinking text server_tool_use web_search_tool_result thinking text"
    )
    use, result = answer.content[2], answer.content[3]
    assert isinstance(use, anthropic.types.ServerToolUseBlock)
    assert isinstance(result, anthropic.types.WebSearchToolResultBlock)
    assert (use.id, use.name, use.input) == (f"srv{IDS[0]}", "web_search", {"query": "tides"})
    assert result.tool_use_id == use.id
    assert isinstance(result.content, list)
    assert [(page.url, page.title, page.page_age) for page in result.content] == [
        (page["url"], page["title"], page.get("age")) for page in PAGES
    ]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.server_tool_use is not None
    assert answer.usage.server_tool_use.web_search_requests == 1
    assert answer.usage.output_tokens == 2 * 74
    assert stub.calls[0] == {"tool": "web_search", "query": "tides"}
    assert kinds(again) == kinds(answer.to_dict())


async def test_returned_results_are_rendered_as_new_ones() -> None:
    gateway = in_turn(
        FIRST, [*search(0, "moon", IDS[1]), *search(1, "sun", IDS[2]), finish(2)], LAST, LAST
    )
    async with hosted(gateway) as (served, _):
        first = await message(served, body(SEARCH))
        live = last(gateway)
        await message(served, body(SEARCH, messages=going_on(first, "Sure?")))
    assert live[1:] == [
        Message(
            "assistant",
            [Reasoning("I search.", "c2VhbA"), Text("Searching."), searched(IDS[0], "tides")],
        ),
        found(IDS[0]),
        Message("assistant", [searched(IDS[1], "moon"), searched(IDS[2], "sun")]),
        found(*IDS[1:3]),
    ]
    assert last(gateway)[: len(live)] == live
    assert last(gateway)[len(live)] == Message(
        "assistant", [Reasoning("So it is noon.", "c2VhbA"), Text("At noon.")]
    )
    ids = [turn.id for turn in gateway.turns]
    assert ids[1:3] == [next_turn_id(ids[0], 1), next_turn_id(ids[0], 2)]


async def test_deferred_call_beside_a_client_call_runs_with_the_next_request() -> None:
    gateway = in_turn(
        [*search(0), *call(1, "look", '{"at": "sea"}', call_id=IDS[1]), finish(2)], LAST, LAST
    )
    async with hosted(gateway) as (served, stub):
        first = await message(served, body(SEARCH, LOOK))
        assert kinds(first) == "server_tool_use tool_use"
        assert (first["stop_reason"], stub.calls) == ("tool_use", [])
        seen = {"type": "tool_result", "tool_use_id": IDS[1], "content": "waves"}
        messages = going_on(first, seen, text("Go on."))
        second = await message(served, body(SEARCH, LOOK, messages=messages))
        live = last(gateway)
        messages += [assistant(*second["content"]), user("Thanks.")]
        await message(served, body(SEARCH, LOOK, messages=messages))
    assert kinds(second) == "web_search_tool_result thinking text"
    assert second["content"][0]["tool_use_id"] == f"srv{IDS[0]}"
    looked = Result(IDS[1], [Text("waves")], name="look")
    assert live[2] == Message("tool", [*found(IDS[0]).parts, looked])
    assert last(gateway)[: len(live)] == live


async def test_many_rounds_pause_and_continue() -> None:
    gateway = in_turn([*search(0), finish(1)], [*search(0, "moon", IDS[1]), finish(1)], LAST)
    async with hosted(gateway, web_max_rounds=2) as (served, _):
        forced = {"type": "tool", "name": "web_search"}
        first = await message(served, body(SEARCH, tool_choice=forced))
        assert first["stop_reason"] == "pause_turn"
        searched = "server_tool_use web_search_tool_result"
        assert kinds(first) == f"{searched} {searched}"
        second = await message(served, body(SEARCH, messages=going_on(first)))
    assert second["stop_reason"] == "end_turn"
    one, two, _ = gateway.conversations
    assert (one.tool_choice.mode, one.tool_choice.name) == ("tool", "web_search")
    assert two.tool_choice.mode == "auto", "the first turn has made the call"
    assert (one.sampling.max_tokens, two.sampling.max_tokens) == (500, 500 - 74)
    assert [turn.role for turn in last(gateway)] == ["user", *["assistant", "tool"] * 2]


async def test_second_turn_that_is_refused_ends_the_answer() -> None:
    too_long, busy = ContextOverflow("prompt is too long"), Overloaded("no worker")
    async with hosted(in_turn(FIRST, too_long, FIRST, busy)) as (served, _):
        answer = await message(served, body(SEARCH))
        stream = (await served.post("/v1/messages", body(SEARCH, stream=True))).text
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["output_tokens"] == 74
    assert stream.count("event: error") == 1
    assert "message_stop" not in stream


async def test_counting_sees_the_same_tools_and_a_cached_search_is_none() -> None:
    gateway = in_turn(LAST, LAST)
    async with hosted(gateway) as (served, _):
        await message(served, body(SEARCH))
        tool = {"type": "web_search", "external_web_access": False}
        assert (await served.post("/v1/responses", {**RESPONSE, "tools": [tool]})).status == 200
        conversation = gateway.conversations[-1]
        assert conversation.tools == []
        assert "not available on this server: web_search." in conversation.system[-1].text
        assert (await served.post("/v1/messages/count_tokens", body(SEARCH))).status == 200
    assert gateway.counted[0].tools == gateway.conversations[0].tools

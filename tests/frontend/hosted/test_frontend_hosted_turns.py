"""Hosted tools over HTTP: what each API sends, what the provider gets, and what the model reads now
and next time."""

import asyncio
import json
from pathlib import Path
from typing import Any

from schemas.conversation import Call, Message, Part, Reasoning, Result, Text
from schemas.errors import ContextOverflow, Overloaded
from services.frontend.turns.hosted.hosted_turns import next_turn_id
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.hosted.hosted_frontend import (
    FETCH,
    FIRST,
    FOUND,
    IDS,
    LAST,
    LOOK,
    SEARCH,
    body,
    counted,
    fetch,
    hosted,
    message,
    search,
)
from tests.kit.bodies import MODEL, assistant, chat, responses, text, user
from tests.kit.events import call, finish
from tests.kit.frontend import FakeGateway, in_turn, serving
from tests.kit.search_provider import PAGES, provider
from tests.kit.waiting import LIMIT_S, eventually

RESPONSE = responses(tools=[{"type": "web_search"}])


def last(gateway: FakeGateway) -> list[Message]:
    """The messages that the model got last."""
    return gateway.conversations[-1].messages


def found(*ids: str) -> Message:
    """The results of searches."""
    return Message("tool", [Result(id, [Text(FOUND)], name="web_search") for id in ids])


def kinds(answer: Any) -> str:
    """The types of the blocks or items of an answer."""
    return " ".join(block["type"] for block in answer.get("content") or answer["output"])


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


async def test_errors_of_calls_are_results() -> None:
    calls = [*search(0), *search(1, id=IDS[1]), *search(2, "x" * 1001, IDS[2])]
    calls += call(3, "web_search", "{}", call_id=IDS[3])
    gateway = in_turn([*calls, finish(4)], LAST)
    async with hosted(gateway) as (served, stub):
        stub.status, stub.answer = 429, {}
        answer = await message(served, body({**SEARCH, "max_uses": 3}))
        assert counted(served) == {
            "too_many_requests": 2,
            "query_too_long": 1,
            "max_uses_exceeded": 1,
            "timed": 2,
        }
    results = [block["content"] for block in answer["content"] if "tool_use_id" in block]
    assert {result["type"] for result in results} == {"web_search_tool_result_error"}
    codes = [result["error_code"] for result in results]
    assert codes == ["too_many_requests"] * 2 + ["query_too_long", "max_uses_exceeded"]
    assert answer["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}
    assert last(gateway)[-1].parts[0] == Result(
        IDS[0], [Text("Error: too_many_requests")], True, "web_search"
    )


async def test_answer_outside_the_contract_or_none_is_unavailable() -> None:
    async with hosted(in_turn(*[FIRST, LAST] * 4)) as (served, stub):
        for stub.answer, stub.status in (
            ({"error": "unavailable"}, 200),
            ({"results": 3}, 200),
            ({}, 500),
            ({"results": [{"title": "no url"}]}, 200),
        ):
            shown = await message(served, body(SEARCH))
            assert shown["content"][3]["content"]["error_code"] == "unavailable", stub.answer
    async with hosted(in_turn(FIRST, LAST), web_timeout_s=0.3) as (served, stub):
        stub.hold = asyncio.Event()
        shown = await message(served, body(SEARCH))
        await asyncio.wait_for(stub.dropped.wait(), LIMIT_S)
        assert shown["content"][3]["content"]["error_code"] == "unavailable", "in time"


async def test_client_that_hangs_up_ends_the_call() -> None:
    gateway = in_turn(FIRST, LAST)
    async with hosted(gateway) as (served, stub):
        stub.hold = asyncio.Event()
        asked = body(SEARCH, stream=True)
        async with served.http.post("/v1/messages", json=asked) as response:
            await response.content.readuntil(b"server_tool_use")
            await asyncio.wait_for(stub.called.wait(), LIMIT_S)
        await asyncio.wait_for(stub.dropped.wait(), LIMIT_S)
        await eventually(lambda: counted(served) == {"cancelled": 1, "timed": 1})
    (turn,) = gateway.turns
    assert turn.cancelled == [], "it had ended"


async def test_provider_gets_key_domains_and_place(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    async with hosted(in_turn(FIRST, LAST), web_provider_key_file=str(file)) as (served, stub):
        location = {"type": "approximate", "city": "Oslo"}
        tool = {**SEARCH, "allowed_domains": ["example.com"], "user_location": location}
        answer = await message(served, body(tool))
        assert counted(served) == {"ok": 1, "timed": 1}
    assert [page["title"] for page in answer["content"][3]["content"]] == ["Moon"]
    assert stub.calls[0]["allowed_domains"] == ["example.com"]
    assert stub.calls[0]["user_location"] == location
    assert stub.keys == ["Bearer secret"]


async def test_provider_gets_no_cookie_of_an_earlier_call() -> None:
    async with provider() as stub:
        # Clients keep no cookies of addresses.
        url = stub.url.replace("127.0.0.1", "localhost")
        gateway = in_turn(FIRST, LAST, FIRST, LAST)
        async with serving(gateway, FrontendConfig(web_provider=url)) as served:
            for _ in range(2):
                await message(served, body(SEARCH))
    assert (len(stub.calls), stub.cookies) == (2, [])


async def test_web_fetch_reads_pages_of_the_conversation() -> None:
    page = PAGES[0]["url"]
    calls = [
        *fetch(0, page),
        *fetch(1, "https://other.example/?leak=1", IDS[1]),
        *fetch(2, "http://[::1]/", IDS[2]),
    ]
    gateway = in_turn([*calls, finish(3)], LAST)
    async with hosted(gateway) as (served, stub):
        answer = await message(served, body({**FETCH, "max_content_tokens": 12}))
    results = [block for block in answer["content"] if block["type"] == "web_fetch_tool_result"]
    document = results[0]["content"]
    assert (document["url"], document["content"]["title"]) == (page, "Tides")
    # 48 characters with URL and title
    assert document["content"]["source"]["data"] == "High water is at n"
    codes = [result["content"]["error_code"] for result in results[1:]]
    assert codes == ["url_not_in_prior_context", "url_not_allowed"]
    assert stub.calls == [{"tool": "web_fetch", "url": page}]
    assert answer["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 1}


async def test_second_turn_that_is_refused_ends_the_answer() -> None:
    too_long, busy = ContextOverflow("prompt is too long"), Overloaded("no worker")
    async with hosted(in_turn(FIRST, too_long, FIRST, busy)) as (served, _):
        answer = await message(served, body(SEARCH))
        stream = (await served.post("/v1/messages", body(SEARCH, stream=True))).text
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["output_tokens"] == 74
    assert stream.count("event: error") == 1
    assert "message_stop" not in stream


async def test_responses_streams_web_search_calls() -> None:
    import openai
    from openai.types.responses import ResponseFunctionWebSearch

    gateway = in_turn(FIRST, LAST)
    tool: Any = {"type": "web_search", "filters": {"allowed_domains": ["example.org"]}}
    include: Any = ["web_search_call.action.sources"]
    async with hosted(gateway) as (served, stub):
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
        async with client:
            stream = await client.responses.create(
                model=MODEL, input="When?", tools=[tool], include=include, stream=True
            )
            events: list[Any] = [event async for event in stream]
    steps = [event.type for event in events if "web_search" in event.type]
    assert steps == [
        f"response.web_search_call.{step}" for step in ("in_progress", "searching", "completed")
    ]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    answer = events[-1].response
    assert kinds(answer.to_dict()) == (
        "reasoning message web_search_call reasoning reasoning message"
    )
    item: Any = answer.output[2]
    assert isinstance(item, ResponseFunctionWebSearch)
    item = item.to_dict()
    sources = [{"type": "url", "url": "https://example.org/tides"}]
    action = {"type": "search", "query": "tides", "queries": ["tides"], "sources": sources}
    assert (item["status"], item["action"]) == ("completed", action)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert sorted(item.id for item in done) == sorted(item.id for item in answer.output)
    assert answer.usage.output_tokens == 2 * 74
    assert stub.calls[0]["allowed_domains"] == ["example.org"]


async def test_responses_keeps_results_for_the_next_request() -> None:
    """As Codex returns them: without ids, and calls with their own members only."""
    mixed = [*search(0, "moon", IDS[1]), *call(1, "look", "{}", call_id=IDS[2]), finish(2)]
    gateway = in_turn(FIRST, mixed, LAST)
    tools = [{"type": "web_search"}, {"type": "function", **{**LOOK, "input_schema": None}}]
    base = {"model": MODEL, "tools": tools, "store": False}
    async with hosted(gateway) as (served, _):
        first = (await served.post("/v1/responses", {**base, "input": "When?"})).json
        live = last(gateway)
        assert kinds(first) == (
            "reasoning message web_search_call reasoning web_search_call function_call reasoning"
        )
        output = {"type": "function_call_output", "call_id": IDS[2], "output": "waves"}
        kept = [
            {name: value for name, value in item.items() if name != "id"}
            for item in first["output"]
        ]
        again = {**base, "input": [{"role": "user", "content": "When?"}, *kept, output]}
        second = await served.post("/v1/responses", again)
    assert (second.status, second.json["status"]) == (200, "completed")
    restored = [comparable(turn) for turn in last(gateway)]
    assert restored[: len(live)] == [comparable(turn) for turn in live]
    moon, look = Call(IDS[1], "web_search", '{"query": "moon"}'), Call(IDS[2], "look", "{}")
    assert restored[len(live)] == Message("assistant", [moon, look])
    assert [part.call_id for part in last(gateway)[-1].parts if isinstance(part, Result)] == IDS[
        1:3
    ]


def comparable(turn: Message) -> Message:
    """Without the ids of items, and reasoning as its text."""
    bare: list[Part] = []
    for part in turn.parts:
        if isinstance(part, Reasoning):
            bare.append(Reasoning(part.text))
        elif isinstance(part, Call):
            bare.append(Call(part.call_id, part.name, part.arguments))
        else:
            bare.append(part)
    return Message(turn.role, bare)


async def test_responses_limits_rounds_and_calls() -> None:
    gateway = in_turn(FIRST, LAST, [*search(0), *search(1, id=IDS[1]), finish(2)], LAST)
    async with hosted(gateway, web_max_rounds=1) as (served, stub):
        first = await served.post("/v1/responses", RESPONSE)
        assert first.json["status"] == "completed"
        assert gateway.conversations[1].tool_choice.mode == "none"
        answer = (await served.post("/v1/responses", {**RESPONSE, "max_tool_calls": 1})).json
    calls = [item for item in answer["output"] if item["type"] == "web_search_call"]
    assert [item["status"] for item in calls] == ["completed", "failed"]
    assert len(stub.calls) == 2


async def test_chat_answers_with_the_text_after_the_search() -> None:
    near = {"type": "approximate", "approximate": {"city": "Oslo"}}
    gateway = in_turn(FIRST, LAST)
    async with hosted(gateway) as (served, stub):
        request = chat(web_search_options={"user_location": near})
        answer = await served.post("/v1/chat/completions", request)
    (choice,) = answer.json["choices"]
    assert (answer.status, choice["finish_reason"]) == (200, "stop")
    assert choice["message"]["content"] == "Searching.At noon."
    assert choice["message"]["reasoning_content"] == "I search.So it is noon."
    assert "tool_calls" not in choice["message"]
    location = {"type": "approximate", "city": "Oslo"}
    assert stub.calls == [{"tool": "web_search", "query": "tides", "user_location": location}]
    assert last(gateway)[-1].role == "tool"


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

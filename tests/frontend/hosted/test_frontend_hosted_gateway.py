"""Hosted tools over HTTP: what each API sends, what the provider gets, and what the model reads now
and next time."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from openai.types.responses import ResponseFunctionWebSearch

from schemas.conversation import Call, Message, Part, Reasoning, Result, Text
from schemas.errors import ContextOverflow, Overloaded
from services.frontend.turns.hosted_turns import next_turn_id
from tests.frontend.hosted.rounds import (
    FETCH,
    FIRST,
    FOUND,
    IDS,
    LAST,
    LOOK,
    SEARCH,
    Rounds,
    body,
    counted,
    fetch,
    hosted,
    message,
    post,
    search,
    streamed,
)
from tests.kit.events import call, finish
from tests.kit.frontend import MODEL, serving
from tests.kit.search_provider import PAGES
from tests.kit.waiting import LIMIT_S, eventually


async def test_messages_streams_all_turns_as_one_message() -> None:
    gateway = Rounds(FIRST, LAST)
    async with hosted(gateway) as (served, stub):
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="any", max_retries=0)
        async with client, client.messages.stream(**body({**SEARCH, "max_uses": 3})) as stream:
            events = [event.type async for event in stream]
            answer = await stream.get_final_message()
        gateway.rounds += [FIRST, LAST]
        again = await message(served, body(SEARCH))
    assert events.count("message_stop") == 1
    assert [block.type for block in answer.content] == [
        *("thinking", "text", "server_tool_use", "web_search_tool_result", "thinking", "text")
    ]
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
    assert [block["type"] for block in again["content"]] == [block.type for block in answer.content]


async def test_returned_results_are_rendered_as_new_ones() -> None:
    gateway = Rounds(
        FIRST, [*search(0, "moon", IDS[1]), *search(1, "sun", IDS[2]), finish(2)], LAST, LAST
    )
    async with hosted(gateway) as (served, _):
        first = await message(served, body(SEARCH))
        live = gateway.turns_of_last
        messages = [*body()["messages"], {"role": "assistant", "content": first["content"]}]
        await message(
            served, body(SEARCH, messages=[*messages, {"role": "user", "content": "Sure?"}])
        )
    assert live[1:] == [
        Message(
            "assistant",
            [Reasoning("I search.", "c2VhbA"), Text("Searching."), _call(IDS[0], "tides")],
        ),
        Message("tool", [Result(IDS[0], [Text(FOUND)], name="web_search")]),
        Message("assistant", [_call(IDS[1], "moon"), _call(IDS[2], "sun")]),
        Message("tool", [Result(id, [Text(FOUND)], name="web_search") for id in IDS[1:3]]),
    ]
    assert gateway.turns_of_last[: len(live)] == live
    assert gateway.turns_of_last[len(live)] == Message(
        "assistant", [Reasoning("So it is noon.", "c2VhbA"), Text("At noon.")]
    )
    ids = [turn.id for turn in gateway.turns]
    assert ids[1:3] == [next_turn_id(ids[0], 1), next_turn_id(ids[0], 2)]


def _call(id: str, query: str) -> Call:
    return Call(id, "web_search", json.dumps({"query": query}))


async def test_deferred_call_beside_a_client_call_runs_with_the_next_request() -> None:
    gateway = Rounds(
        [*search(0), *call(1, "look", '{"at": "sea"}', call_id=IDS[1]), finish(2)], LAST, LAST
    )
    async with hosted(gateway) as (served, stub):
        first = await message(served, body(SEARCH, LOOK))
        assert [block["type"] for block in first["content"]] == ["server_tool_use", "tool_use"]
        assert (first["stop_reason"], stub.calls) == ("tool_use", [])
        messages = [*body()["messages"], {"role": "assistant", "content": first["content"]}]
        seen = {"type": "tool_result", "tool_use_id": IDS[1], "content": "waves"}
        messages.append({"role": "user", "content": [seen, {"type": "text", "text": "Go on."}]})
        second = await message(served, body(SEARCH, LOOK, messages=messages))
        live = gateway.turns_of_last
        messages += [
            {"role": "assistant", "content": second["content"]},
            {"role": "user", "content": "Thanks."},
        ]
        await message(served, body(SEARCH, LOOK, messages=messages))
    assert [block["type"] for block in second["content"]] == [
        "web_search_tool_result",
        "thinking",
        "text",
    ]
    assert second["content"][0]["tool_use_id"] == f"srv{IDS[0]}"
    results = [
        Result(IDS[0], [Text(FOUND)], name="web_search"),
        Result(IDS[1], [Text("waves")], name="look"),
    ]
    assert live[2] == Message("tool", [*results])
    assert gateway.turns_of_last[: len(live)] == live


async def test_many_rounds_pause_and_continue() -> None:
    gateway = Rounds([*search(0), finish(1)], [*search(0, "moon", IDS[1]), finish(1)], LAST)
    async with hosted(gateway, web_max_rounds=2) as (served, _):
        first = await message(served, body(SEARCH))
        assert first["stop_reason"] == "pause_turn"
        assert [block["type"] for block in first["content"]] == [
            "server_tool_use",
            "web_search_tool_result",
        ] * 2
        messages = [*body()["messages"], {"role": "assistant", "content": first["content"]}]
        second = await message(served, body(SEARCH, messages=messages))
    assert second["stop_reason"] == "end_turn"
    assert [turn.role for turn in gateway.turns_of_last] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


async def test_errors_of_calls_are_results() -> None:
    many = [
        *search(0),
        *search(1, id=IDS[1]),
        *search(2, "x" * 1001, IDS[2]),
        *call(3, "web_search", "{}", call_id=IDS[3]),
    ]
    gateway = Rounds([*many, finish(4)], LAST)
    async with hosted(gateway) as (served, stub):
        stub.status, stub.answer = 429, {}
        answer = await message(served, body({**SEARCH, "max_uses": 3}))
        assert counted(served) == {
            "too_many_requests": 2,
            "query_too_long": 1,
            "max_uses_exceeded": 1,
            "timed": 2,
        }
    codes = [
        block["content"] for block in answer["content"] if block["type"] == "web_search_tool_result"
    ]
    assert codes == [
        {"type": "web_search_tool_result_error", "error_code": code}
        for code in (
            "too_many_requests",
            "too_many_requests",
            "query_too_long",
            "max_uses_exceeded",
        )
    ]
    assert answer["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}
    assert gateway.turns_of_last[-1].parts[0] == Result(
        IDS[0], [Text("Error: too_many_requests")], True, "web_search"
    )


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"error": "unavailable"}, 200),
        ({"results": 3}, 200),
        ({}, 500),
        ({"results": [{"title": "no url"}]}, 200),
    ],
)
async def test_answer_outside_the_contract_is_unavailable(
    answer: dict[str, Any], status: int
) -> None:
    async with hosted(Rounds(FIRST, LAST)) as (served, stub):
        stub.answer, stub.status = answer, status
        shown = await message(served, body(SEARCH))
    assert shown["content"][3]["content"]["error_code"] == "unavailable"


async def test_silent_provider_times_out() -> None:
    async with hosted(Rounds(FIRST, LAST), web_timeout_s=0.05) as (served, stub):
        stub.hold = asyncio.Event()
        shown = await message(served, body(SEARCH))
        await asyncio.wait_for(stub.dropped.wait(), LIMIT_S)
    assert shown["content"][3]["content"]["error_code"] == "unavailable"


async def test_client_that_hangs_up_ends_the_call() -> None:
    gateway = Rounds(FIRST, LAST)
    async with hosted(gateway) as (served, stub):
        stub.hold = asyncio.Event()
        async with streamed(served, body(SEARCH)) as response:
            await response.content.readuntil(b"server_tool_use")
            await asyncio.wait_for(stub.called.wait(), LIMIT_S)
        await asyncio.wait_for(stub.dropped.wait(), LIMIT_S)
        await eventually(lambda: counted(served) == {"cancelled": 1, "timed": 1})
    (turn,) = gateway.turns
    assert turn.cancelled == [], "it had ended"


async def test_domains_limit_calls_and_results() -> None:
    async with hosted(Rounds(FIRST, LAST)) as (served, stub):
        location = {"type": "approximate", "city": "Oslo"}
        tool = {**SEARCH, "allowed_domains": ["example.com"], "user_location": location}
        answer = await message(served, body(tool))
        assert counted(served) == {"ok": 1, "timed": 1}
    assert [page["title"] for page in answer["content"][3]["content"]] == ["Moon"]
    assert stub.calls[0]["allowed_domains"] == ["example.com"]
    assert stub.calls[0]["user_location"] == location


async def test_web_fetch_reads_pages_of_the_conversation() -> None:
    page = PAGES[0]["url"]
    calls = [
        *fetch(0, page),
        *fetch(1, "https://other.example/?leak=1", IDS[1]),
        *fetch(2, "http://[::1]/", IDS[2]),
    ]
    gateway = Rounds([*calls, finish(3)], LAST)
    async with hosted(gateway) as (served, stub):
        answer = await message(served, body({**FETCH, "max_content_tokens": 12}))
    results = [block for block in answer["content"] if block["type"] == "web_fetch_tool_result"]
    document = anthropic.types.WebFetchBlock.model_validate(results[0]["content"])
    assert (document.url, document.content.title) == (page, "Tides")
    assert document.content.source.data == "High water is at n"  # 48 characters with URL and title
    assert [result["content"]["error_code"] for result in results[1:]] == [
        *("url_not_in_prior_context", "url_not_allowed")
    ]
    assert stub.calls == [{"tool": "web_fetch", "url": page}]
    assert answer["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 1}


async def test_limits_hold_for_the_whole_answer() -> None:
    gateway = Rounds(FIRST, LAST)
    async with hosted(gateway) as (served, _):
        await message(served, body(SEARCH, tool_choice={"type": "tool", "name": "web_search"}))
    first, second = (turn.conversation for turn in gateway.turns)
    assert (first.tool_choice.mode, first.tool_choice.name) == ("tool", "web_search")
    assert second.tool_choice.mode == "auto"
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (500, 500 - 74)


async def test_results_over_the_window_end_the_answer() -> None:
    async with hosted(Rounds(FIRST, ContextOverflow("prompt is too long"))) as (served, _):
        answer = await message(served, body(SEARCH))
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["output_tokens"] == 74


async def test_failure_of_the_second_turn_is_the_only_end() -> None:
    async with (
        hosted(Rounds(FIRST, Overloaded("no worker"))) as (served, _),
        streamed(served, body(SEARCH)) as response,
    ):
        stream = (await response.read()).decode()
    assert stream.count("event: error") == 1
    assert "message_stop" not in stream


async def test_responses_streams_web_search_calls() -> None:
    gateway = Rounds(FIRST, LAST)
    tool: Any = {"type": "web_search", "filters": {"allowed_domains": ["example.org"]}}
    include: Any = ["web_search_call.action.sources"]
    async with hosted(gateway) as (served, stub):
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
        async with client:
            stream = await client.responses.create(
                model=MODEL, input="When?", tools=[tool], include=include, stream=True
            )
            events: list[Any] = [event async for event in stream]
    kinds = [event.type for event in events if "web_search" in event.type]
    assert kinds == [
        f"response.web_search_call.{step}" for step in ("in_progress", "searching", "completed")
    ]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    answer = events[-1].response
    assert [item.type for item in answer.output] == [
        *("reasoning", "message", "web_search_call", "reasoning", "reasoning", "message")
    ]
    found: Any = answer.output[2]
    assert isinstance(found, ResponseFunctionWebSearch)
    found = found.to_dict()
    sources = [{"type": "url", "url": "https://example.org/tides"}]
    action = {"type": "search", "query": "tides", "queries": ["tides"], "sources": sources}
    assert (found["status"], found["action"]) == ("completed", action)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert sorted(item.id for item in done) == sorted(item.id for item in answer.output)
    assert answer.usage.output_tokens == 2 * 74
    assert stub.calls[0]["allowed_domains"] == ["example.org"]


@pytest.mark.parametrize("stored", [True, False])
async def test_responses_keeps_results_for_the_next_request(stored: bool) -> None:
    mixed = [*search(0, "moon", IDS[1]), *call(1, "look", "{}", call_id=IDS[2]), finish(2)]
    gateway = Rounds(FIRST, mixed, LAST)
    tools = [{"type": "web_search"}, {"type": "function", **{**LOOK, "input_schema": None}}]
    base = {"model": MODEL, "tools": tools, "store": stored}
    async with hosted(gateway) as (served, _):
        _, first = await post(served, "/v1/responses", {**base, "input": "When?"})
        live = gateway.turns_of_last
        assert [item["type"] for item in first["output"]] == [
            *(
                "reasoning",
                "message",
                "web_search_call",
                "reasoning",
                "web_search_call",
                "function_call",
                "reasoning",
            )
        ]
        output = {"type": "function_call_output", "call_id": IDS[2], "output": "waves"}
        if stored:
            again = {**base, "previous_response_id": first["id"], "input": [output]}
        else:  # as Codex: without ids, and calls with their own members only
            kept = [
                {name: value for name, value in item.items() if name != "id"}
                for item in first["output"]
            ]
            again = {**base, "input": [{"role": "user", "content": "When?"}, *kept, output]}
        status, second = await post(served, "/v1/responses", again)
    assert (status, second["status"]) == (200, "completed")
    restored = [comparable(turn) for turn in gateway.turns_of_last]
    assert restored[: len(live)] == [comparable(turn) for turn in live]
    moon, look = Call(IDS[1], "web_search", '{"query": "moon"}'), Call(IDS[2], "look", "{}")
    assert restored[len(live)] == Message("assistant", [moon, look])
    assert [
        part.call_id for part in gateway.turns_of_last[-1].parts if isinstance(part, Result)
    ] == IDS[1:3]


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


async def test_responses_end_with_a_turn_without_tools() -> None:
    gateway = Rounds(FIRST, LAST)
    async with hosted(gateway, web_max_rounds=1) as (served, _):
        _, answer = await post(
            served,
            "/v1/responses",
            {"model": MODEL, "input": "?", "tools": [{"type": "web_search"}]},
        )
    assert answer["status"] == "completed"
    assert gateway.turns[-1].conversation.tool_choice.mode == "none"


async def test_responses_limits_calls_by_max_tool_calls() -> None:
    gateway = Rounds([*search(0), *search(1, id=IDS[1]), finish(2)], LAST)
    request = {"model": MODEL, "input": "?", "tools": [{"type": "web_search"}], "max_tool_calls": 1}
    async with hosted(gateway) as (served, stub):
        _, answer = await post(served, "/v1/responses", request)
    assert [item["status"] for item in answer["output"] if item["type"] == "web_search_call"] == [
        "completed",
        "failed",
    ]
    assert len(stub.calls) == 1


async def test_cached_search_is_refused() -> None:
    gateway = Rounds(LAST)
    tool = {"type": "web_search", "external_web_access": False}
    async with hosted(gateway) as (served, _):
        status, _ = await post(
            served, "/v1/responses", {"model": MODEL, "input": "?", "tools": [tool]}
        )
    conversation = gateway.turns[0].conversation
    assert (status, conversation.tools) == (200, [])
    assert "not available on this server: web_search." in conversation.system[-1].text


async def test_token_ids_are_refused() -> None:
    async with hosted(Rounds(LAST)) as (served, _):
        status, answer = await post(served, "/v1/messages", body(SEARCH, return_token_ids=True))
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


async def test_key_is_sent_as_a_bearer_token(tmp_path: Any) -> None:
    (tmp_path / "key").write_text("secret\n")
    async with hosted(Rounds(FIRST, LAST), web_provider_key_file=str(tmp_path / "key")) as (
        served,
        stub,
    ):
        await message(served, body(SEARCH))
    assert stub.keys == ["Bearer secret"]


async def test_chat_answers_with_the_text_after_the_search() -> None:
    options = {"user_location": {"type": "approximate", "approximate": {"city": "Oslo"}}}
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "?"}],
        "web_search_options": options,
    }
    gateway = Rounds(FIRST, LAST)
    async with hosted(gateway) as (served, stub):
        status, answer = await post(served, "/v1/chat/completions", request)
    (choice,) = answer["choices"]
    assert (status, choice["finish_reason"]) == (200, "stop")
    assert choice["message"]["content"] == "Searching.At noon."
    assert choice["message"]["reasoning_content"] == "I search.So it is noon."
    assert "tool_calls" not in choice["message"]
    assert stub.calls == [
        {
            "tool": "web_search",
            "query": "tides",
            "user_location": {"type": "approximate", "city": "Oslo"},
        }
    ]
    assert gateway.turns_of_last[-1].role == "tool"


async def test_chat_without_a_provider_reports_that_it_cannot_search() -> None:
    gateway = Rounds(LAST)
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "?"}],
        "web_search_options": {},
    }
    async with serving(gateway) as served:
        status, _ = await post(served, "/v1/chat/completions", request)
    assert status == 200
    assert (
        "not available on this server: web_search." in gateway.turns[0].conversation.system[0].text
    )


async def test_counting_sees_the_same_tools() -> None:
    gateway = Rounds(LAST)
    async with hosted(gateway) as (served, _):
        await message(served, body(SEARCH))
        for path in ("/v1/messages/count_tokens", "/v1/tokenize"):
            status, _ = await post(served, path, body(SEARCH))
            assert status == 200
        chat = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "?"}],
            "web_search_options": {},
        }
        await post(served, "/v1/tokenize", chat)
    tokenized = [
        conversation.tools
        for _, _, conversation, _ in gateway.tokenized
        if conversation is not None
    ]
    tools = gateway.turns[0].conversation.tools
    assert gateway.counted[0].tools == tokenized[0] == tools
    assert [tool.name for tool in tokenized[1]] == ["web_search"]

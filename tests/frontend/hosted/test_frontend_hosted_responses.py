"""Hosted tools in Responses and Chat Completions."""

from typing import Any

from schemas.conversation import Call, Message, Part, Reasoning, Result
from tests.frontend.hosted.hosted_frontend import (
    FIRST,
    IDS,
    LAST,
    LOOK,
    hosted,
    kinds,
    last,
    search,
)
from tests.kit.bodies import MODEL, chat, responses
from tests.kit.events import call, finish
from tests.kit.frontend import in_turn

RESPONSE = responses(tools=[{"type": "web_search"}])


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

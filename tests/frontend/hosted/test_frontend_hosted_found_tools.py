"""Searches of deferred tools over HTTP: what the client gets, and what the model reads now and next
time."""

import json
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse

from schemas.conversation import Result, Text, ToolReference
from schemas.events import TurnEvent
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.hosted.searches import (
    IDS,
    answered,
    calling,
    comparable,
    kinds,
    last,
    searching,
)
from tests.kit.answers import events
from tests.kit.bodies import (
    MESSAGES,
    MODEL,
    RESPONSES,
    Json,
    assistant,
    block,
    function,
    function_output,
    messages,
    responses,
    tool,
    tool_result,
    user,
)
from tests.kit.events import call, finish, reasoning, text
from tests.kit.frontend import in_turn, serving
from tests.kit.waiting import LIMIT_S
from turnwire_tools.clients.apis import CLIENTS

REGEX = block("tool_search_tool_regex_20251119", name="tool_search_tool_regex")
BM25 = block("tool_search_tool_bm25", name="tool_search_tool_bm25")
SHIP = tool("ship", description="Sends a parcel.", defer_loading=True)
WEATHER = tool("weather", description="Looks out of the window.", defer_loading=True)
LAST: list[TurnEvent] = [*reasoning(0, "I know."), *text(1, "Done."), finish(2)]


async def test_messages_streams_search_and_call_as_one_message() -> None:
    import anthropic

    gateway = in_turn(searching({"pattern": "PARCEL|nothing"}), calling("ship"))
    asked: Any = messages(tools=[REGEX, SHIP, WEATHER])
    async with serving(gateway, FrontendConfig()) as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="any", max_retries=0)
        async with client, client.messages.stream(**asked) as stream:
            types = [event.type async for event in stream]
            answer = await stream.get_final_message()
    assert types.count("message_stop") == 1
    assert kinds(answer.to_dict()) == [
        *("thinking", "server_tool_use", "tool_search_tool_result", "tool_use")
    ]
    _, use, result, made = answer.content
    assert isinstance(use, anthropic.types.ServerToolUseBlock)
    assert isinstance(result, anthropic.types.ToolSearchToolResultBlock)
    assert (use.id, use.name) == (f"srv{IDS[0]}", "tool_search_tool_regex")
    assert use.input == {"pattern": "PARCEL|nothing"}
    reference = {"type": "tool_reference", "tool_name": "ship"}
    found = {"type": "tool_search_tool_search_result", "tool_references": [reference]}
    assert result.to_dict() == block("tool_search_tool_result", tool_use_id=use.id, content=found)
    assert isinstance(made, anthropic.types.ToolUseBlock)
    assert (made.name, answer.stop_reason) == ("ship", "tool_use")
    counts = {"web_search_requests": 0, "web_fetch_requests": 0}
    assert answer.usage.server_tool_use is not None
    assert answer.usage.server_tool_use.to_dict() == counts, "the API does not count this search"
    assert answer.usage.output_tokens == 2 * 74

    first, second = gateway.conversations
    assert [spec.name for spec in first.tools if not spec.deferred] == ["tool_search_tool_regex"]
    assert first.tools == second.tools, "the tool list stays"
    assert first.system == []
    assert second.messages[-1].parts == [
        Result(IDS[0], [ToolReference("ship")], name="tool_search_tool_regex")
    ]


async def test_returned_searches_of_messages_are_rendered_as_new_ones() -> None:
    gateway = in_turn(
        searching({"pattern": "ship"}, {"pattern": "("}),
        searching({"pattern": "none"}, {}, {"pattern": 1}, {"pattern": "x" * 201}, ids=2),
        calling("ship"),
        LAST,
    )
    asked = messages(tools=[REGEX, SHIP, WEATHER])
    async with serving(gateway, FrontendConfig()) as served:
        answer = await answered(served, asked)
        live = last(gateway)
        history = [*asked["messages"], assistant(*answer["content"]), user(tool_result(IDS[7]))]
        await answered(served, asked | {"messages": history})
    results = [part["content"] for part in answer["content"] if "tool_use_id" in part]
    codes = [result.get("error_code") for result in results]
    assert codes == [None, "invalid_tool_input", None, *["invalid_tool_input"] * 3]
    assert results[1]["error_message"].startswith("Invalid regular expression pattern: missing )")
    assert results[2] == block("tool_search_tool_search_result", tool_references=[])
    assert len(live) == 5
    assert last(gateway)[:5] == live
    assert live[4].parts[0] == Result(IDS[2], [Text("No tools were found.")], name=REGEX["name"])
    assert live[4].parts[1] == Result(
        IDS[3], [Text("Error: invalid_tool_input")], True, REGEX["name"]
    )


async def test_search_beside_a_client_call_runs_with_the_next_request() -> None:
    turn = [
        *call(0, "tool_search_tool_bm25", '{"query": "parcels"}', call_id=IDS[0]),
        *call(1, "look", "{}", call_id=IDS[1]),
        finish(2),
    ]
    gateway = in_turn(turn, LAST, LAST)
    asked = messages(tools=[BM25, SHIP, tool("look")])
    async with serving(gateway, FrontendConfig()) as served:
        first = await answered(served, asked)
        assert (kinds(first), first["stop_reason"]) == (["server_tool_use", "tool_use"], "tool_use")
        history = [*asked["messages"], assistant(*first["content"]), user(tool_result(IDS[1]))]
        second = await answered(served, asked | {"messages": history})
        live = last(gateway)
        history += [assistant(*second["content"]), user("Thanks.")]
        await answered(served, asked | {"messages": history})
    assert kinds(second) == ["tool_search_tool_result", "thinking", "text"]
    found = Result(IDS[0], [ToolReference("ship")], name="tool_search_tool_bm25")
    assert live[2].parts == [found, Result(IDS[1], [Text("seen")], name="look")]
    assert last(gateway)[: len(live)] == live


async def test_many_searches_are_refused_and_many_rounds_pause() -> None:
    patterns = [{"pattern": "ship"}] * 3
    gateway = in_turn(searching(*patterns), searching({"pattern": "ship"}, ids=3), LAST)
    asked = messages(tools=[REGEX, SHIP], tool_choice=block("tool", name=REGEX["name"]))
    async with serving(gateway, FrontendConfig(web_max_rounds=2, web_max_calls=2)) as served:
        first = await answered(served, asked)
        assert first["stop_reason"] == "pause_turn"
        again = messages(*asked["messages"], assistant(*first["content"]), tools=[REGEX, SHIP])
        second = await answered(served, again)
    results = [part["content"] for part in first["content"] if "tool_use_id" in part]
    codes = [result.get("error_code") for result in results]
    assert codes == [None, None, "too_many_requests", "too_many_requests"]
    assert second["stop_reason"] == "end_turn"
    assert [one.tool_choice.mode for one in gateway.conversations] == ["tool", "auto", "auto"]


async def test_search_that_the_request_no_longer_has_is_text() -> None:
    gateway = in_turn(searching({"pattern": "ship"}), LAST, LAST)
    asked = messages(tools=[REGEX, SHIP])
    async with serving(gateway, FrontendConfig()) as served:
        answer = await answered(served, asked)
        history = [*asked["messages"], assistant(*answer["content"]), user("More.")]
        await answered(served, messages(*history, tools=[tool("look")]))
    texts = [part.text for part in last(gateway)[1].parts if isinstance(part, Text)]
    assert texts[0] == '[tool_search_tool_regex {"pattern": "ship"}]'
    assert "ship" in texts[1]


async def test_edits_of_the_context_keep_what_searches_found() -> None:
    gateway = in_turn(searching({"pattern": "ship"}), calling("ship"), LAST)
    asked = messages(tools=[REGEX, SHIP])
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 1},
        "keep": {"type": "tool_uses", "value": 0},
    }
    async with serving(gateway, FrontendConfig()) as served:
        answer = await answered(served, asked)
        history = [*asked["messages"], assistant(*answer["content"]), user(tool_result(IDS[7]))]
        request = messages(*history, tools=[REGEX, SHIP], context_management={"edits": [edit]})
        await answered(served, request)
    results = [part for turn in last(gateway) for part in turn.parts if isinstance(part, Result)]
    assert [result.parts for result in results] == [
        [ToolReference("ship")],
        [Text("[Old tool result content cleared]")],
    ]


@pytest.mark.parametrize("stream", [True, False])
async def test_thread_keeps_what_searches_found(stream: bool) -> None:
    gateway = in_turn(searching({"pattern": "ship"}), calling("ship"), LAST)
    asked = messages(tools=[REGEX, SHIP], thread=block("create"), stream=stream)
    async with serving(gateway, FrontendConfig()) as served:
        reply = await served.post("/v1/messages", asked)
        answer = events(reply.text.encode())[0]["message"] if stream else reply.json
        more = block("continue", previous_message_id=answer["id"])
        following = messages(user(tool_result(IDS[7])), tools=[REGEX, SHIP], thread=more)
        await answered(served, following)
    live = gateway.conversations[1]
    assert last(gateway)[: len(live.messages)] == live.messages
    assert gateway.conversations[2].tools == live.tools


async def test_counting_sees_the_same_tools() -> None:
    gateway = in_turn(LAST, LAST)
    async with serving(gateway, FrontendConfig()) as served:
        asked = messages(tools=[REGEX, SHIP])
        await answered(served, asked)
        await answered(served, asked, "/v1/messages/count_tokens")
        asked = responses(tools=[block("tool_search"), function(defer_loading=True)])
        await answered(served, asked, "/v1/responses")
        await answered(served, asked, "/v1/responses/input_tokens")
    assert [one.tools for one in gateway.counted] == [one.tools for one in gateway.conversations]


async def test_search_that_is_not_listed_cannot_be_chosen() -> None:
    async with serving(in_turn(), FrontendConfig()) as served:
        asked = responses(tools=[function()], tool_choice=block("tool_search"))
        reply = await served.post("/v1/responses", asked)
    assert reply.status == 400
    assert reply.json["error"]["message"] == (
        "Tool choice 'tool_search' not found in 'tools' parameter."
    )


SEARCH = block("tool_search")
CRM = block(
    "namespace",
    name="crm",
    description="Customers and orders.",
    tools=[
        function("orders", description="Lists open orders.", defer_loading=True),
        function("customer", description="Finds a customer.", defer_loading=True),
        function("ping"),
    ],
)
MAIL = function("mail", description="Sends mail about orders to a customer.", defer_loading=True)
QUERY = {"query": "open orders of a customer"}


def asking(*arguments: Json | str, ids: int = 0) -> list[TurnEvent]:
    return searching(*arguments, name="tool_search", ids=ids)


async def test_responses_streams_searches_and_their_tools() -> None:
    import openai
    from openai.types.responses import ResponseToolSearchCall, ResponseToolSearchOutputItem

    gateway = in_turn(asking(QUERY), calling("crm__orders"))
    async with serving(gateway, FrontendConfig()) as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
        async with client:
            tools: Any = [CRM, MAIL, SEARCH]
            stream = await client.responses.create(
                model=MODEL, input="Which?", tools=tools, stream=True
            )
            streamed: list[Any] = [event async for event in stream]
    assert [event.sequence_number for event in streamed] == [*range(len(streamed))]
    answer = streamed[-1].response
    steps = [
        (event.type.rpartition(".")[2], event.item.type, event.item.status)
        for event in streamed
        if event.type.startswith("response.output_item") and "search" in event.item.type
    ]
    assert steps == [
        ("added", "tool_search_call", "in_progress"),
        ("done", "tool_search_call", "completed"),
        ("added", "tool_search_output", "in_progress"),
        ("done", "tool_search_output", "completed"),
    ]
    assert kinds(answer.to_dict()) == [
        *("reasoning", "tool_search_call", "tool_search_output", "function_call")
    ]
    _, made, found, ordered = answer.output
    assert isinstance(made, ResponseToolSearchCall)
    assert isinstance(found, ResponseToolSearchOutputItem)
    for item in (made, found):
        assert (item.execution, item.call_id, item.status) == ("server", None, "completed")
    assert made.arguments == QUERY
    orders, customer, _ = CRM["tools"]
    assert found.to_dict()["tools"] == [
        CRM | {"tools": [orders]},
        MAIL,
        CRM | {"tools": [customer]},
    ]
    assert (ordered.namespace, ordered.name) == ("crm", "orders")

    first, second = gateway.conversations
    listed = [spec.name for spec in first.tools if not spec.deferred]
    assert listed == ["ping", "tool_search"]
    assert first.tools == second.tools, "the tool list stays"
    about = first.tools[-1].description
    assert about.endswith("Their namespaces:\n- crm: Customers and orders.")
    ping = next(spec for spec in first.tools if spec.name == "ping")
    assert ping.description == "crm: Customers and orders."
    references = [ToolReference(name) for name in ("crm__orders", "mail", "crm__customer")]
    assert second.messages[-1].parts == [Result(IDS[0], [*references], name="tool_search")]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("with_ids", [True, False])
async def test_returned_searches_of_responses_are_rendered_as_new_ones(
    stored: bool, with_ids: bool
) -> None:
    """Codex returns items without ids."""
    gateway = in_turn(
        asking(QUERY, {"query": ""}, {"query": "quantum"}),
        asking({"query": "mail"}, {"query": 1}, {"query": "x" * 501}, {"query": "orders"}, ids=3),
        calling("crm__orders"),
        LAST,
    )
    asked = responses(user("Hi."), tools=[CRM, MAIL, SEARCH], store=stored)
    async with serving(gateway, FrontendConfig(web_max_calls=6)) as served:
        answer = await answered(served, asked, "/v1/responses")
        live = last(gateway)
        more: list[Json] = [function_output(IDS[7])]
        again = asked | {"input": more, "previous_response_id": answer["id"]}
        if not stored:
            items = answer["output"]
            if not with_ids:
                items = [
                    {name: value for name, value in item.items() if name != "id"} for item in items
                ]
            again = asked | {"input": [*asked["input"], *items, *more]}
        await answered(served, again, "/v1/responses")
    outputs = [item for item in answer["output"] if item["type"] == "tool_search_output"]
    failed = ["incomplete" if number in (1, 4, 5, 6) else "completed" for number in range(7)]
    assert [item["status"] for item in outputs] == failed
    assert len(live) == 5
    assert comparable(last(gateway)[:5]) == comparable(live)
    errors = [part.parts[0] for part in live[4].parts if isinstance(part, Result) and part.is_error]
    codes = ["invalid_tool_input", "invalid_tool_input", "too_many_requests"]
    assert errors == [Text(f"Error: {code}") for code in codes]


async def test_search_of_responses_beside_a_client_call_runs_at_once() -> None:
    turn = [
        *call(0, "tool_search", '{"query": "mail"}', call_id=IDS[0]),
        *call(1, "crm__ping", "{}", call_id=IDS[1]),
        finish(2),
    ]
    gateway = in_turn(turn, LAST, LAST)
    asked = responses(user("Hi."), tools=[CRM, MAIL, SEARCH], store=False)
    async with serving(gateway, FrontendConfig()) as served:
        answer = await answered(served, asked, "/v1/responses")
        assert kinds(answer) == ["tool_search_call", "function_call", "tool_search_output"]
        items = [*asked["input"], *answer["output"], function_output(IDS[1])]
        await answered(served, asked | {"input": items}, "/v1/responses")
    results = last(gateway)[2].parts
    assert [part.name for part in results if isinstance(part, Result)] == [
        *("tool_search", "crm__ping")
    ]


async def test_own_function_named_like_the_search_keeps_its_name() -> None:
    gateway = in_turn(searching({"query": "mail"}, name="tool_search_2"), LAST)
    asked = responses(tools=[SEARCH, MAIL, function("tool_search")])
    async with serving(gateway, FrontendConfig()) as served:
        answer = await answered(served, asked, "/v1/responses")
    assert kinds(answer)[:3] == ["reasoning", "tool_search_call", "tool_search_output"]
    assert [spec.name for spec in gateway.conversations[0].tools] == [
        *("mail", "tool_search", "tool_search_2")
    ]


async def test_request_written_from_a_conversation_has_its_prompt() -> None:
    """As a replay writes it: one turn of the model, with tools of the client only."""
    gateway = in_turn(searching({"pattern": "ship"}), LAST, asking(QUERY, {"query": "?"}), LAST)
    async with serving(gateway, FrontendConfig()) as served:
        await answered(served, messages(tools=[REGEX, SHIP, WEATHER]))
        await answered(served, responses(user("Hi."), tools=[CRM, MAIL, SEARCH]), "/v1/responses")
    for parser, writer, live in (
        (MESSAGES, CLIENTS["messages"], gateway.conversations[1]),
        (RESPONSES, CLIENTS["responses"], gateway.conversations[3]),
    ):
        again = parser.read(**json.loads(writer.request(live)))
        assert comparable(again.messages) == comparable(live.messages)
        shown = [[(one.name, one.deferred) for one in two.tools] for two in (again, live)]
        assert shown[0] == shown[1]


async def test_searches_in_the_background_and_by_web_socket() -> None:
    gateway = in_turn(*[asking(QUERY), calling("crm__orders"), LAST] * 2)
    asked = responses(user("Hi."), tools=[CRM, MAIL, SEARCH])
    async with serving(gateway, FrontendConfig()) as served:
        begun = await answered(served, asked | {"background": True}, "/v1/responses")
        answer = begun
        while answer["status"] in ("queued", "in_progress"):
            answer = (await served.get(f"/v1/responses/{begun['id']}")).json
        more = {"input": [function_output(IDS[7])], "previous_response_id": begun["id"]}
        await answered(served, asked | more, "/v1/responses")

        async with served.http.ws_connect("/v1/responses") as socket:
            first = await by_socket(socket, asked | {"store": False})
            more = {"input": [function_output(IDS[7])], "previous_response_id": first["id"]}
            await by_socket(socket, asked | more)
    expected = ["reasoning", "tool_search_call", "tool_search_output", "function_call"]
    assert kinds(answer) == kinds(first) == expected
    for number in (0, 3):
        _, live, again = gateway.conversations[number : number + 3]
        assert comparable(again.messages[: len(live.messages)]) == comparable(live.messages)


async def by_socket(socket: ClientWebSocketResponse, request: Json) -> Json:
    """The Response that a socket answers with."""
    await socket.send_json({"type": "response.create", **request})
    while True:
        frame = await socket.receive_json(timeout=LIMIT_S)
        if frame["type"] == "response.completed":
            response: Json = frame["response"]
            return response

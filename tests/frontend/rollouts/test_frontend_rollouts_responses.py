"""Turns of rollouts that come by other ways: Responses with state, in the background and by
WebSocket, and answers with hosted tools."""

import asyncio
import json
from typing import Any

from services.runtime.config.frontend import FrontendConfig
from tests.frontend.rollouts.token_turns import HELLO, Agent, Block, TokenGateway, rollout
from tests.kit.bodies import MODEL, Json, function, messages, responses
from tests.kit.frontend import Served, serving
from tests.kit.search_provider import provider
from tests.kit.waiting import eventually


async def respond(agent: Agent, **fields: Any) -> Json:
    reply = await agent.served.post(f"/rollouts/{agent.id}/v1/responses", responses(**fields))
    assert reply.status == 200, reply.text
    document: Json = reply.json
    return document


async def test_previous_response_is_continued(served: Served) -> None:
    agent = await rollout(served)
    first = await respond(agent)
    second = await respond(agent, input="And now?", previous_response_id=first["id"])
    path = f"/rollouts/{agent.id}/v1/responses/{second['id']}"
    assert (await served.get(path)).json == second
    items = await served.get(f"{path}/input_items")
    assert items.status == 200
    assert (await served.send("DELETE", path)).status == 200
    (sample,) = await agent.samples()
    assert len(sample["turns"]) == 2


async def test_background_response_is_a_turn(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served)
    gateway.pause = asyncio.Event()
    made = await respond(agent, background=True)
    await eventually(lambda: len(gateway.turns) == 1)
    assert (await agent.state())["open_turns"] == 1
    gateway.pause.set()
    while (await agent.state())["turns"] == 0:
        await asyncio.sleep(0.01)
    reply = await served.get(f"/rollouts/{agent.id}/v1/responses/{made['id']}")
    assert reply.json["status"] == "completed"
    gateway.pause = asyncio.Event()
    made = await respond(agent, background=True)
    await eventually(lambda: len(gateway.turns) == 2)
    await agent.call("POST", "/abort")
    path = f"/rollouts/{agent.id}/v1/responses/{made['id']}"
    while (reply := await served.get(path)).json["status"] == "in_progress":
        await asyncio.sleep(0.01)
    assert reply.json["status"] == "failed"
    assert await agent.missing() == ["aborted"]


async def test_websocket_below_the_address(served: Served) -> None:
    agent = await rollout(served, limits={"turns": 2})
    async with served.http.ws_connect(f"/rollouts/{agent.id}/v1/responses") as socket:
        ends = []
        for _ in range(3):
            await socket.send_json({"type": "response.create", "model": MODEL, "input": "Hi."})
            frame: Json = {"type": ""}
            while frame["type"] not in ("response.completed", "response.failed", "error"):
                frame = await socket.receive_json(timeout=10)
            ends.append(frame["type"])
    assert ends[:2] == ["response.completed"] * 2
    assert ends[2] != "response.completed"
    state = await agent.state()
    assert (state["turns"], state["reason"]) == (2, "turns")


async def test_warm_up_is_no_turn(served: Served, gateway: TokenGateway) -> None:
    """Codex fills the cache before its first request."""
    agent = await rollout(served)
    async with served.http.ws_connect(f"/rollouts/{agent.id}/v1/responses") as socket:
        request = {"type": "response.create", "model": MODEL, "input": "Hi.", "generate": False}
        await socket.send_json(request)
        frame: Json = {"type": ""}
        while frame["type"] not in ("response.completed", "response.incomplete"):
            frame = await socket.receive_json(timeout=10)
    assert len(gateway.turns) == 1
    state = await agent.state()
    assert (state["turns"], state["missing"]) == (0, [])


async def test_each_turn_of_a_hosted_tool_is_recorded(gateway: TokenGateway) -> None:
    search = Block("tool_use", json.dumps({"query": "tides"}), "web_search", "toolu_" + "A" * 24)
    gateway.answers = [[Block("text", "I search"), search], HELLO]
    async with provider() as stub:
        config = FrontendConfig(web_provider=stub.url)
        async with serving(gateway, config) as served:
            agent = await rollout(served)
            tools = [{"type": "web_search_20250305", "name": "web_search"}]
            answer = await agent.ask(tools=tools)
            kinds = [block["type"] for block in answer.json["content"]]
            assert kinds == ["text", "server_tool_use", "web_search_tool_result", "text"]
            state = await agent.state()
            assert (state["turns"], state["missing"]) == (2, [])
            samples = await agent.samples()
            turns = [turn["turn"] for sample in samples for turn in sample["turns"]]
            assert turns == [turn.id for turn in gateway.turns]
            refused = await agent.ask("More.", tools=tools, return_token_ids=True)
            assert refused.status == 400, "as without a rollout"


async def test_each_turn_of_a_search_of_tools_is_recorded(gateway: TokenGateway) -> None:
    arguments = json.dumps({"query": "look"})
    search = Block("tool_use", arguments, "tool_search", "toolu_" + "A" * 24)
    gateway.answers = [[Block("text", "I search"), search], HELLO]
    async with serving(gateway) as served:
        agent = await rollout(served)
        tools = [{"type": "tool_search"}, function(defer_loading=True)]
        answer = await respond(agent, tools=tools)
        kinds = [item["type"] for item in answer["output"]]
        assert kinds == ["message", "tool_search_call", "tool_search_output", "message"]
        state = await agent.state()
        assert (state["turns"], state["missing"]) == (2, [])
        samples = await agent.samples()
        turns = [turn["turn"] for sample in samples for turn in sample["turns"]]
        assert turns == [turn.id for turn in gateway.turns]


async def test_codex_gets_the_etag_of_its_models(served: Served) -> None:
    agent = await rollout(served)
    prefix = f"/rollouts/{agent.id}"
    etag = (await served.get(f"{prefix}/codex/models.json")).headers["etag"]
    for stream in (False, True):
        reply = await served.post(f"{prefix}/v1/responses", responses(stream=stream))
        assert (reply.status, reply.headers["x-models-etag"]) == (200, etag)


async def test_thread_belongs_to_its_rollout(served: Served) -> None:
    agent = await rollout(served)

    async def send(path: str, thread: Json) -> Json:
        reply = await served.post(f"{path}/v1/messages", messages(thread=thread))
        document: Json = reply.json
        return document

    first = await send(f"/rollouts/{agent.id}", {"type": "create"})
    following = {"type": "continue", "previous_message_id": first["id"]}
    other = await rollout(served)
    for path in ("", f"/rollouts/{other.id}"):
        refused = await send(path, following)
        assert refused["error"]["details"]["error_code"] == "thread_not_found"
    assert (await send(f"/rollouts/{agent.id}", following))["type"] == "message"
    (sample,) = await agent.samples()
    assert len(sample["turns"]) == 2

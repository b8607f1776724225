"""Rollouts end, begin again, and are the same in all frontends."""

import asyncio
from typing import Any

import pytest

from services.frontend.rollouts import rollouts as rollouts_module
from tests.frontend.rollouts.token_turns import Agent, TokenGateway, rollout, serving_two
from tests.kit.bodies import MODEL
from tests.kit.every import Cases
from tests.kit.frontend import Served
from tests.kit.rollouts import MemoryRollouts
from tests.kit.waiting import eventually


@pytest.mark.parametrize("when", ["opening", "streaming"])
async def test_abort_ends_open_turns(served: Served, gateway: TokenGateway, when: str) -> None:
    agent = await rollout(served)
    await agent.ask()
    if when == "opening":
        gateway.hold = asyncio.Event()
    else:
        gateway.pause = asyncio.Event()
    gateway.opening.clear()
    asking = asyncio.create_task(agent.ask("More."))
    await gateway.opening.wait()
    if when == "streaming":
        await eventually(lambda: gateway.turns[-1].player is not None)
    reply = await agent.call("POST", "/abort")
    assert (reply.status, reply.json["status"]) == (200, "aborted")
    refused = await asking
    assert refused.status == 400
    assert "aborted" in refused.json["error"]["message"]
    if when == "opening":
        await gateway.open_cancelled.wait()
        assert gateway.open_cancelled_for == "abandoned"
    else:
        await gateway.turns[-1].cancel_seen.wait()
    assert await agent.missing() == ["aborted"]
    assert (await agent.ask()).status == 400
    assert (await agent.state())["open_turns"] == 0
    assert served.none_open()


async def test_abort_of_a_stream_is_its_last_event(served: Served, gateway: TokenGateway) -> None:
    gateway.pause = asyncio.Event()
    agent = await rollout(served)
    body = {"model": MODEL, "max_tokens": 9, "stream": True, "messages": []}
    body["messages"] = [{"role": "user", "content": "Hi."}]
    path = f"/rollouts/{agent.id}/v1/messages"
    async with served.http.post(path, json=body) as response:
        assert await response.content.readline() == b"event: message_start\n"
        await agent.call("POST", "/abort")
        text = (await response.content.read()).decode()
    assert '"type":"error"' in text
    assert "aborted" in text
    assert "message_stop" not in text


async def test_abort_after_the_end_changes_no_turn(served: Served) -> None:
    agent = await rollout(served)
    await agent.ask()
    await agent.call("POST", "/abort")
    (sample,) = await agent.samples()
    assert len(sample["turns"]) == 1
    assert await agent.missing() == []
    again = await agent.call("POST", "/finish")
    assert again.json["status"] == "aborted", "the first end counts"


async def test_finish_lets_open_turns_end(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served)
    gateway.pause = asyncio.Event()
    asking = asyncio.create_task(agent.ask())
    await eventually(lambda: len(gateway.turns) == 1)
    finishing = asyncio.create_task(agent.call("POST", "/finish"))
    while (await agent.state())["status"] == "open":
        await asyncio.sleep(0.01)
    assert not finishing.done(), "it waits for the turn"
    gateway.pause.set()
    assert (await asking).status == 200
    finished = await finishing
    assert (finished.json["status"], finished.json["turns"]) == ("finished", 1)
    (sample,) = await agent.samples()
    assert len(sample["turns"]) == 1
    refused = await agent.ask()
    assert (refused.status, refused.json["error"]["type"]) == (400, "invalid_request_error")


async def test_stale_rollout_begins_again(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served, weights={"max_version_lag": 1, "on_lag": "restart"})
    for version in (1, 2):
        gateway.set_version(version)
        assert (await agent.ask(f"Number {version}.")).status == 200
    assert (await agent.state())["weights_versions"] == [1, 2]
    gateway.set_version(3)
    assert "weights" in (await agent.ask("Three.")).json["error"]["message"]
    assert (await agent.state())["status"] == "stale"
    restarted = await agent.call("POST", "/restart")
    assert (restarted.json["status"], restarted.json["run"]) == ("open", 2)
    agent.messages.clear()
    # As the first turn of the first run: its record must not refer to that one.
    assert (await agent.ask("Number 1.")).status == 200
    (sample,) = await agent.samples()
    assert [turn["turn"] for turn in sample["turns"]] == [gateway.turns[-1].id]
    assert await agent.missing() == []
    assert {span["version"] for span in sample["weights"]} == {3}


async def test_lost_turn_of_a_dead_frontend_is_named(gateway: TokenGateway) -> None:
    async with serving_two(gateway) as (first, second, (one, two)):
        agent = await rollout(first)
        await agent.ask()
        gateway.pause = asyncio.Event()
        asking = asyncio.create_task(agent.ask("More."))
        await eventually(lambda: len(gateway.turns) == 2)
        there = Agent(second, agent.document)
        assert await there.missing() == ["running"]
        two.dead.add(one.id)
        assert await there.missing() == ["lost"]
        asking.cancel()


async def test_frontends_share_rollouts(gateway: TokenGateway) -> None:
    async with serving_two(gateway) as (first, second, _):
        here = await rollout(first, limits={"turns": 4})
        there = Agent(second, here.document)
        there.messages = here.messages
        for agent in (here, there, here):
            assert (await agent.ask("Next.")).status == 200
        for agent in (here, there):
            (sample,) = await agent.samples()
            assert len(sample["turns"]) == 3
        (turn, *_) = sample["turns"]
        rewarded = await here.call("PUT", "/reward", {"reward": 0.5, "turns": {turn["turn"]: 1.0}})
        assert rewarded.status == 200
        state = await there.state()
        assert (state["reward"], state["turn_rewards"]) == (0.5, {turn["turn"]: 1.0})
        assert (await there.ask("Last.")).status == 200
        assert (await here.ask("One more.")).status == 400
        assert (await there.state())["reason"] == "turns"


@pytest.mark.parametrize("notices", [True, False])
async def test_end_holds_in_other_frontends(gateway: TokenGateway, notices: bool) -> None:
    async with serving_two(gateway) as (first, second, processes):
        agent = await rollout(first)
        there = Agent(second, agent.document)
        assert (await there.ask()).status == 200
        if not notices:
            for process in processes:
                process.peers.clear()
        await agent.call("POST", "/finish")
        if not notices:
            await asyncio.sleep(rollouts_module.FRESH_S)
        assert (await there.ask()).status == 400
        assert (await there.state())["status"] == "finished"


async def test_abort_reaches_turns_of_other_frontends(gateway: TokenGateway) -> None:
    async with serving_two(gateway) as (first, second, _):
        agent = await rollout(first)
        there = Agent(second, agent.document)
        gateway.pause = asyncio.Event()
        asking = asyncio.create_task(there.ask())
        await eventually(lambda: len(gateway.turns) == 1)
        assert (await agent.call("POST", "/abort")).json["open_turns"] == 0
        assert (await asking).status == 400
        assert gateway.turns[-1].cancelled == ["abandoned"]


@pytest.mark.parametrize("notices", [True, False])
async def test_deleted_rollout_is_gone_everywhere(gateway: TokenGateway, notices: bool) -> None:
    async with serving_two(gateway) as (first, second, processes):
        agent = await rollout(first)
        there = Agent(second, agent.document)
        await there.ask()
        if not notices:
            for process in processes:
                process.peers.clear()
        deleted = await agent.call("DELETE")
        assert deleted.json == {"id": agent.id, "deleted": True}
        await asyncio.sleep(rollouts_module.FRESH_S)
        for one in (agent, there):
            assert (await one.call("GET")).status == 404
            assert (await one.ask()).status == 404


async def test_rollout_that_the_store_dropped_is_gone(
    served: Served, process: MemoryRollouts
) -> None:
    agent = await rollout(served)
    await agent.ask()
    await agent.samples()
    del process.memory.values[agent.id]["rollout"]
    await asyncio.sleep(rollouts_module.FRESH_S)
    assert (await agent.call("GET")).status == 404
    assert (await agent.ask()).status == 404


async def test_reward_of_an_unknown_turn_is_refused(served: Served) -> None:
    agent = await rollout(served)
    await agent.ask()
    reply = await agent.call("PUT", "/reward", {"turns": {"other": 1.0}})
    assert (reply.status, reply.json["error"]["param"]) == (400, "turns")
    rewarded = await agent.call("PUT", "/reward", {"reward": 1.0})
    assert rewarded.json["reward"] == 1.0
    (sample,) = await agent.samples()
    assert sample["reward"] == 1.0


async def test_restart_drops_turns_and_rewards(served: Served) -> None:
    agent = await rollout(served, limits={"seconds": 3600})
    await agent.ask()
    await agent.call("PUT", "/reward", {"reward": 5.0})
    await agent.call("POST", "/finish")
    document = (await agent.call("POST", "/restart")).json
    assert (document["status"], document["run"], document["reward"]) == ("open", 2, None)
    assert await agent.samples() == []
    await agent.ask()
    (sample,) = await agent.samples()
    assert (sample["reward"], await agent.missing()) == (None, [])


INVALID: list[dict[str, Any]] = [
    *({"limits": {"turns": turns}} for turns in (0, 2**64)),
    *({"limits": limits} for limits in ({"output_tokens": -1}, {"seconds": 0}, {"turn": 1})),
    *({"sampling": sampling} for sampling in ({"temperature": -1.0}, {"logprobs": 1})),
    {"sampling": {"max_tokens": 2**64}},
    {"weights": {"max_version_lag": -1}},
    *({"group": ""}, {"metadata": []}, {"metadata": "text"}),
    *({"models": MODEL}, {"modell": "m"}),
]


async def test_invalid_rollout_is_refused(served: Served, cases: Cases) -> None:
    for body in INVALID:
        with cases.case(body):
            assert (await served.post("/rollouts", body)).status == 400


async def test_metadata_comes_back_as_it_was_written(served: Served) -> None:
    text = b'{"metadata": {"n": 123456789012345678901234567890, "x": 1.0}}'
    reply = await served.send("POST", "/rollouts", data=text)
    assert b'{"n": 123456789012345678901234567890, "x": 1.0}' in reply.body

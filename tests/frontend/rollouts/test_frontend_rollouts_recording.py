"""Turns of rollouts are recorded, whatever becomes of them and of the store."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import Overloaded
from schemas.events import UNKNOWN_WEIGHTS, Failed, Finish, FinishReason, Usage, WeightsSpan
from services.frontend.rollouts import rollouts as rollouts_module
from services.frontend.rollouts import turn_writer
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.rollouts.token_turns import (
    AGENT,
    END,
    HELLO,
    Agent,
    Block,
    TokenGateway,
    logprob_of,
    rollout,
    serving_two,
    text_ids,
)
from tests.kit.bodies import MODEL
from tests.kit.frontend import Served, serving
from tests.kit.rollouts import MemoryRollouts
from tests.kit.waiting import eventually

GOODBYE = [Block("text", "Goodbye then")]


@pytest.fixture
def gateway() -> TokenGateway:
    return TokenGateway()


@pytest.fixture
def process() -> MemoryRollouts:
    return MemoryRollouts()


@pytest.fixture
async def served(gateway: TokenGateway, process: MemoryRollouts) -> AsyncIterator[Served]:
    async with serving(gateway, FrontendConfig(), rollouts=process) as served:
        yield served


def stored(process: MemoryRollouts, agent: Agent) -> dict[str | None, tuple[int, bytes]]:
    """The values of a rollout, by name."""
    return process.memory.values[agent.id]


async def test_conversation_is_one_sample(served: Served, gateway: TokenGateway) -> None:
    gateway.answers = [HELLO, GOODBYE]
    agent = await rollout(served, group="g", metadata={"task": 7})
    first = await agent.ask("Hi.")
    second = await agent.ask("And now?")
    assert (first.status, second.status) == (200, 200)
    (sample,) = await agent.samples()
    hello, goodbye = ([*text_ids(blocks[0].text), END] for blocks in (HELLO, GOODBYE))
    ids = sample["ids"]
    turns = sample["turns"]
    assert [ids[turn["start"] : turn["end"]] for turn in turns] == [hello, goodbye]
    assert sum(sample["loss_mask"]) == len(hello) + len(goodbye)
    for turn in turns:
        places = range(turn["start"], turn["end"])
        values = [sample["logprobs"][at] for at in places]
        assert values == [logprob_of(at) for at in range(len(places))]
    assert (sample["group"], sample["rollout"]) == ("g", agent.id)
    last = (await agent.lines())[-1]
    assert (last["rollout"], last["metadata"], last["missing"]) == (agent.id, {"task": 7}, [])
    state = await agent.state()
    assert (state["turns"], state["open_turns"], state["output_tokens"]) == (2, 0, 8)


async def test_record_is_written_over_its_marker(
    served: Served, gateway: TokenGateway, process: MemoryRollouts
) -> None:
    agent = await rollout(served)
    gateway.pause = asyncio.Event()
    asking = asyncio.create_task(agent.ask())
    await eventually(lambda: len(gateway.turns) == 1)
    state = await agent.state()
    assert (state["turns"], state["open_turns"]) == (0, 1)
    assert len(stored(process, agent)) == 2
    gateway.pause.set()
    await asking
    assert len(await agent.samples()) == 1
    assert await agent.missing() == []
    assert len(stored(process, agent)) == 2


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
        assert gateway.open_cancelled_for == "failed"
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


async def test_client_that_leaves_cancels_its_turn(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served)
    await agent.ask()
    gateway.pause = asyncio.Event()
    asking = asyncio.create_task(agent.ask("More."))
    await eventually(lambda: len(gateway.turns) == 2)
    asking.cancel()
    await gateway.turns[-1].cancel_seen.wait()
    assert await agent.missing() == ["cancelled"]


async def test_refused_and_failed_turns_are_named(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served)
    await agent.ask()
    gateway.refusal = Overloaded("full")
    assert (await agent.ask("More.")).status == 529
    gateway.refusal = None
    info = Overloaded("gone").info
    for end in (Failed(info), Finish(FinishReason.ERROR, 0, Usage())):
        gateway.end = end
        assert (await agent.ask("More.")).status >= 500
    assert await agent.missing() == ["refused", "failed", "failed"]
    state = await agent.state()
    assert (state["turns"], len(state["missing"])) == (1, 3)


async def test_rollout_without_tokens_names_its_turns(
    served: Served, gateway: TokenGateway
) -> None:
    agent = await rollout(served)
    gateway.refusal = Overloaded("full")
    await agent.ask()
    assert await agent.samples() == []
    state = await agent.state()
    assert (state["turns"], state["open_turns"]) == (0, 0)
    assert [turn["why"] for turn in state["missing"]] == ["refused"]


async def test_limits_count_turns_that_run(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served, limits={"turns": 3})
    gateway.pause = asyncio.Event()
    asking = [asyncio.create_task(agent.ask(f"Number {number}.")) for number in range(6)]
    await eventually(lambda: sum(task.done() for task in asking) == 3)
    gateway.pause.set()
    replies = await asyncio.gather(*asking)
    assert sorted(reply.status for reply in replies) == [200, 200, 200, 400, 400, 400]
    state = await agent.state()
    assert (state["status"], state["reason"], state["turns"]) == ("ended", "turns", 3)


async def test_limits_hold_before_records_are_stored(
    served: Served, process: MemoryRollouts
) -> None:
    agent = await rollout(served, limits={"output_tokens": 5})
    process.memory.delay_s = 0.1
    assert (await agent.ask()).json["usage"]["output_tokens"] == 5
    assert (await agent.ask("More.")).status == 400


async def test_output_tokens_are_the_sum_of_turns(served: Served, gateway: TokenGateway) -> None:
    gateway.answers = [[Block("text", "one two three four five six")]]
    agent = await rollout(served, limits={"output_tokens": 10})
    replies = [await agent.ask(f"Number {number}.") for number in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 400]
    assert replies[1].json["stop_reason"] == "max_tokens"
    assert "output tokens" in replies[2].json["error"]["message"]
    state = await agent.state()
    assert (state["output_tokens"], state["reason"]) == (10, "output_tokens")


async def test_limit_of_seconds(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await rollout(served, limits={"seconds": 60})
    assert (await agent.ask()).status == 200
    later = agent.document["created"] + 60
    monkeypatch.setattr("services.frontend.rollouts.recording.time.time", lambda: later)
    assert "time is over" in (await agent.ask()).json["error"]["message"]


async def test_stale_rollout_begins_again(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served, weights={"max_version_lag": 1, "on_lag": "restart"})
    for version in (1, 2):
        set_version(gateway, version)
        assert (await agent.ask(f"Number {version}.")).status == 200
    assert (await agent.state())["weights_versions"] == [1, 2]
    set_version(gateway, 3)
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


async def test_turn_of_unknown_weights_counts_for_the_lag(
    served: Served, gateway: TokenGateway
) -> None:
    """An inference server did not say which ones, or a worker has continued it for another."""
    agent = await rollout(served, weights={"max_version_lag": 1})
    set_version(gateway, 3)
    gateway.weights = [WeightsSpan(0, UNKNOWN_WEIGHTS)]
    assert (await agent.ask("One.")).status == 200
    assert (await agent.state())["weights_versions"] == [3]
    set_version(gateway, 5)
    assert "weights" in (await agent.ask("Two.")).json["error"]["message"]


def set_version(gateway: TokenGateway, version: int) -> None:
    gateway.cards = [replace(gateway.cards[0], weights_version=version)]
    gateway.weights = [WeightsSpan(0, version)]


async def test_sampling_and_model_are_the_rollouts(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served, model=MODEL, sampling={"temperature": 1.0, "max_tokens": 2})
    reply = await agent.ask(model="whatever", temperature=0.0, top_p=0.5)
    assert reply.status == 200
    assert reply.json["model"] == "whatever"
    sampling = gateway.turns[-1].conversation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, 0.5, 2)
    assert reply.json["stop_reason"] == "max_tokens"


async def test_store_that_is_away_gets_the_record_later(
    served: Served,
    gateway: TokenGateway,
    process: MemoryRollouts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_writer, "RETRY_S", 0.02)
    agent = await rollout(served)
    gateway.pause = asyncio.Event()
    asking = asyncio.create_task(agent.ask())
    await eventually(lambda: len(gateway.turns) == 1)
    process.memory.is_away = True
    gateway.pause.set()
    assert (await asking).status == 200, "the client does not notice"
    await eventually(lambda: "rollout.turn_not_stored" in [line["event"] for line in served.lines])
    await asyncio.sleep(rollouts_module.FRESH_S)
    assert (await agent.ask("More.")).status == 503, "limits cannot be checked"
    assert (await agent.call("GET")).status == 503
    process.memory.is_away = False
    while not (samples := await agent.samples()):
        await asyncio.sleep(0.01)
    assert len(samples[0]["turns"]) == 1
    assert await agent.missing() == []


async def test_turn_that_is_too_large_is_named(
    served: Served, gateway: TokenGateway, process: MemoryRollouts
) -> None:
    agent = await rollout(served)
    await agent.ask()
    process.memory.max_value_bytes = 1500
    gateway.answers = [[Block("text", "word " * 2000)]]
    assert (await agent.ask("More.")).status == 200
    assert await agent.missing() == ["too_large"]


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
        assert gateway.turns[-1].cancelled == ["failed"]


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
    del stored(process, agent)["rollout"]
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


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": {"turns": 0}},
        {"limits": {"output_tokens": -1}},
        {"limits": {"seconds": 0}},
        {"limits": {"turn": 1}},
        {"weights": {"max_version_lag": -1}},
        {"sampling": {"temperature": -1.0}},
        {"sampling": {"logprobs": 1}},
        {"group": ""},
        {"models": MODEL},
    ],
)
async def test_invalid_rollout_is_refused(served: Served, fields: dict[str, object]) -> None:
    reply = await served.post("/rollouts", fields)
    assert reply.status == 400, reply.text


async def test_engine_without_log_probabilities(served: Served, gateway: TokenGateway) -> None:
    gateway.cards = [replace(gateway.cards[0], features=[])]
    agent = await rollout(served)
    assert (await agent.ask()).status == 200
    assert gateway.turns[-1].conversation.sampling.logprobs is None
    (sample,) = await agent.samples()
    assert (sample["logprobs"], sample["turns"][0]["blocks"]) == (None, None)
    assert sum(sample["loss_mask"]) == 5


async def test_agent_turn_has_its_blocks(served: Served, gateway: TokenGateway) -> None:
    gateway.answers = [AGENT]
    agent = await rollout(served)
    await agent.ask(tools=[{"name": "look", "input_schema": {"type": "object"}}])
    (sample,) = await agent.samples()
    (turn,) = sample["turns"]
    start = turn["start"]
    kinds = [(block["kind"], block["start"] - start) for block in turn["blocks"]]
    assert kinds == [("reasoning", 0), ("text", 5), ("tool_use", 9)]
    assert turn["blocks"][-1]["name"] == "look"


async def test_parallel_turns_of_two_frontends_do_not_exceed_the_limit(
    gateway: TokenGateway,
) -> None:
    async with serving_two(gateway) as (first, second, _):
        agent = await rollout(first, limits={"turns": 2})
        there = Agent(second, agent.document)
        asking = [one.ask(f"Number {number}.") for number in range(5) for one in (agent, there)]
        statuses = [reply.status for reply in await asyncio.gather(*asking)]
        assert statuses.count(200) == 2
        assert {*statuses} == {200, 400}
        state = await agent.state()
        assert (state["status"], state["reason"], state["turns"]) == ("ended", "turns", 2)


async def test_follower_of_a_deleted_rollout_gets_the_end(served: Served) -> None:
    agent = await rollout(served)
    await agent.ask()
    following = asyncio.create_task(agent.call("GET", "/samples?follow=true"))
    await asyncio.sleep(0)
    await agent.call("DELETE")
    async with asyncio.timeout(60):
        assert (await following).status in (200, 404)


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


async def test_cancelled_turns_count_for_the_limits(served: Served, gateway: TokenGateway) -> None:
    agent = await rollout(served, limits={"turns": 1})
    gateway.pause = asyncio.Event()
    asking = asyncio.create_task(agent.ask())
    await eventually(lambda: len(gateway.turns) == 1)
    await asyncio.sleep(0.01)  # for its first tokens
    asking.cancel()
    await gateway.turns[-1].cancel_seen.wait()
    state = await agent.state()
    assert (state["status"], state["output_tokens"] > 0) == ("ended", True)


@pytest.mark.parametrize(
    "body",
    [
        {"limits": {"turns": 2**64}},
        {"sampling": {"max_tokens": 2**64}},
        {"limits": {"turns": 0}},
        {"metadata": []},
        {"metadata": "text"},
        {"modell": "m"},
    ],
)
async def test_body_that_is_not_valid_is_refused(served: Served, body: dict[str, Any]) -> None:
    assert (await served.post("/rollouts", body)).status == 400


async def test_metadata_comes_back_as_it_was_written(served: Served) -> None:
    text = b'{"metadata": {"n": 123456789012345678901234567890, "x": 1.0}}'
    reply = await served.send("POST", "/rollouts", data=text)
    assert b'{"n": 123456789012345678901234567890, "x": 1.0}' in reply.body

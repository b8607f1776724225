"""Turns of rollouts are recorded, whatever becomes of them and of the store."""

import asyncio

import pytest

from schemas.errors import Overloaded
from schemas.events import Failed, Finish, FinishReason, Usage
from services.frontend.rollouts import rollouts as rollouts_module
from services.frontend.rollouts import turn_writer
from tests.frontend.rollouts.token_turns import Block, TokenGateway, rollout
from tests.kit.bodies import MODEL
from tests.kit.frontend import Served
from tests.kit.rollouts import MemoryRollouts
from tests.kit.waiting import eventually


async def test_record_is_written_over_its_marker(
    served: Served, gateway: TokenGateway, process: MemoryRollouts
) -> None:
    agent = await rollout(served)
    gateway.pause = asyncio.Event()
    asking = asyncio.create_task(agent.ask())
    await eventually(lambda: len(gateway.turns) == 1)
    state = await agent.state()
    assert (state["turns"], state["open_turns"]) == (0, 1)
    assert len(process.memory.values[agent.id]) == 2
    gateway.pause.set()
    await asking
    assert len(await agent.samples()) == 1
    assert await agent.missing() == []
    assert len(process.memory.values[agent.id]) == 2


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

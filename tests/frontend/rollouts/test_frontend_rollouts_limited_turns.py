"""Limits of a rollout over the turns of all frontends, also of those that run or were cancelled."""

import asyncio

from schemas.events import UNKNOWN_WEIGHTS, WeightsSpan
from tests.frontend.rollouts.token_turns import Agent, Block, TokenGateway, rollout, serving_two
from tests.kit.frontend import Served
from tests.kit.rollouts import MemoryRollouts
from tests.kit.waiting import eventually


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


async def test_limit_of_seconds(served: Served) -> None:
    agent = await rollout(served, limits={"seconds": 1e-6})
    assert "time is over" in (await agent.ask()).json["error"]["message"]


async def test_turn_of_unknown_weights_counts_for_the_lag(
    served: Served, gateway: TokenGateway
) -> None:
    """An inference server did not say which ones, or a worker has continued it for another."""
    agent = await rollout(served, weights={"max_version_lag": 1})
    gateway.set_version(3)
    gateway.weights = [WeightsSpan(0, UNKNOWN_WEIGHTS)]
    assert (await agent.ask("One.")).status == 200
    assert (await agent.state())["weights_versions"] == [3]
    gateway.set_version(5)
    assert "weights" in (await agent.ask("Two.")).json["error"]["message"]


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

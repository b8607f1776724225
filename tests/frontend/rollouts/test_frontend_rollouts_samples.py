"""Samples of a rollout as the API sends them."""

import asyncio

from msgspec.structs import replace

from tests.frontend.rollouts.token_turns import (
    AGENT,
    END,
    HELLO,
    Block,
    TokenGateway,
    logprob_of,
    rollout,
    text_ids,
)
from tests.kit.frontend import Served

GOODBYE = [Block("text", "Goodbye then")]


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


async def test_follower_of_a_deleted_rollout_gets_the_end(served: Served) -> None:
    agent = await rollout(served)
    await agent.ask()
    following = asyncio.create_task(agent.call("GET", "/samples?follow=true"))
    await asyncio.sleep(0)
    await agent.call("DELETE")
    async with asyncio.timeout(60):
        assert (await following).status in (200, 404)

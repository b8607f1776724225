"""Budgets of reasoning tokens through real processes and all APIs."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.bus_turns import BusTurns
from tests.kit.messages_client import Client, say
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from tests.pipeline.thought_budgets import BUDGETS, END, LIMIT, asking, end_of_thought
from turnwire_tools.clients.answer import APIS

THOUGHT = "Look. [[fill 500]]\n</think>\n\n"


@pytest.mark.slow  # a stack of its own
async def test_budget_holds_on_every_api_and_when_the_worker_is_killed(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path: Path
) -> None:
    stack = Stack(make_nats(), demo_model, tmp_path)
    try:
        stack.start_all(preprocessor=BUDGETS)
        client = Client(stack.url)
        question = asking(say(THOUGHT + "So it is."), model=MODEL)
        for api in APIS:
            for stream in (False, True):
                async with BusTurns(stack.nats.url) as bus:
                    answer = await client.converse(api, question, stream=stream)
                    (begun,) = await bus.begun(1)
                    turn = await bus.ended(begun.id)
                thought, text = answer.blocks
                assert thought.text.startswith("Look. ")
                assert (thought.kind, text.kind, text.text) == ("reasoning", "text", "So it is.")
                assert turn.output.index(end_of_thought(demo_model)) + 1 == LIMIT + END

        slow = asking(say("[[delay 20]]" + THOUGHT + "So it is. [[fill 40]]"), model=MODEL)
        before = await client.converse("chat", slow, stream=False)
        started = asyncio.Event()
        running = asyncio.create_task(client.converse("chat", slow, stream=True, begun=started))
        await started.wait()
        (worker,) = stack.of("worker")
        worker.kill()
        worker.start()
        assert (await running).story == before.story
        await client.http.close()
    finally:
        stack.stop()

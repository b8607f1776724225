"""An agent's loop on all three APIs with real weights that only a `response_template` describes:
the transformers engine."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise

import pytest

from schemas.conversation import Call, Conversation, Message, Result, Text, ToolSpec
from tests.clients.bus_turns import BusTurns, prefix_break
from tests.kit.described_model import SHELLS, build_looping_model, loop_answers
from tests.kit.messages_client import Client
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from turnwire_tools.clients.answer import APIS, Api, ClientAnswer, Story

MODEL = "tiny/looping"
SHELL = "run_shell"
ANSWERS = loop_answers(SHELL)
TOOL = ToolSpec(
    SHELL,
    schema={"type": "object", "properties": {SHELLS[SHELL]: {"type": "string"}}},
    strict=False,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.fixture(scope="module")
def looping(
    make_nats: Callable[[], NatsServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    model = build_looping_model(tmp_path_factory.mktemp("looping") / "model")
    running = Stack(make_nats(), model, tmp_path_factory.mktemp("stack"))
    named = {"served_model_name": MODEL}
    try:
        yield running.start_all(
            parser=named, preprocessor=named, worker={**named, "engine": "transformers"}
        )
    finally:
        running.stop()


@pytest.fixture
async def client(looping: Stack) -> AsyncIterator[Client]:
    connected = Client(looping.url)
    yield connected
    await connected.http.close()


async def ask(
    client: Client,
    api: Api,
    messages: list[Message],
    *,
    stream: bool,
    begun: asyncio.Event | None = None,
) -> ClientAnswer:
    return await client.converse(
        api, Conversation(MODEL, messages, tools=[TOOL]), stream=stream, begun=begun
    )


def stripped(story: Story) -> Story:
    """Blocks without white space around them."""
    return [(kind, text.strip()) for kind, text in story]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_loop_has_every_block_in_order_and_a_prompt_that_grows(
    looping: Stack, client: Client, api: Api, stream: bool
) -> None:
    messages = [Message("user", [Text(f"Replace alpha with beta. ({api}, {stream})")])]
    async with BusTurns(looping.nats.url) as bus:
        for number in range(len(ANSWERS)):
            answer = await ask(client, api, messages, stream=stream)
            assert stripped(answer.story) == ANSWERS[number]
            messages.append(Message("assistant", answer.parts))
            calls = [part for part in answer.parts if isinstance(part, Call)]
            assert answer.end == ("calls" if calls else "stop")
            messages += [
                Message("tool", [Result(one.call_id, [Text("It is done.")])]) for one in calls
            ]
            if not calls:
                messages.append(Message("user", [Text("Go on: join the files.")]))
        turns = [await bus.ended(turn.id) for turn in await bus.begun(len(ANSWERS))]
    assert len(turns) == len(ANSWERS)
    assert [found for pair in pairwise(turns) if (found := prefix_break(*pair)) is not None] == []
    assert all(
        (later.cached or 0) > len(earlier.prompt + earlier.output) - 64
        for earlier, later in pairwise(turns)
    )


@pytest.mark.parametrize("api", APIS)
async def test_turn_continues_when_its_worker_is_killed(
    looping: Stack, client: Client, api: Api
) -> None:
    begun = asyncio.Event()
    (worker,) = looping.of("worker")
    async with BusTurns(looping.nats.url) as bus:
        running = asyncio.create_task(
            ask(client, api, [Message("user", [Text("Begin.")])], stream=True, begun=begun)
        )
        await begun.wait()
        worker.kill()
        worker.start()
        answer = await running
        (turn,) = await bus.begun(1)
    assert turn.retries, "the turn ended before the worker was killed"
    assert stripped(answer.story) == ANSWERS[0]

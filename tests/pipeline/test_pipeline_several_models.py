"""Several models on one bus: started, stopped and updated apart, while streams run on all of
them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.messages_client import Answer, Client, body, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Child, Stack
from tests.kit.waiting import LIMIT_S, until

STAGES = ("worker", "parser", "preprocessor")
WORDS = " ".join(f"word{number}" for number in range(120))
LONG = f"Hm.</think>[[delay 20]]{WORDS}"
"""A turn of some seconds."""
START_S = 4 * LIMIT_S
"""For a model's processes to start, beside others that do."""
SHORT = "Hm.</think>Yes."


def ask(model: str, output: str, session: str = "") -> dict[str, Any]:
    user = json.dumps({"session_id": session or output})
    return body(say(output), model=model, tools=[], metadata={"user_id": user})


async def start(client: Client, model: str, *sessions: str) -> list[asyncio.Task[Answer]]:
    """Starts a long stream in each session, and waits until all have begun."""
    begun = [asyncio.Event() for _ in sessions]
    streams = [
        asyncio.create_task(client.stream(ask(model, LONG, session), begun=event))
        for session, event in zip(sessions, begun, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    return streams


async def finish(streams: list[asyncio.Task[Answer]]) -> None:
    for stream in streams:
        answer = await stream
        assert (answer.error, answer.stop_reason) == (None, "end_turn")
        assert answer.blocks[-1]["text"] == WORDS


class Bus:
    """Two frontends, and a stack of processes for each model."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.of: dict[str, list[Child]] = {}
        """The processes of each model."""

    def add(self, model: str, stage: str, **options: Any) -> Child:
        """Starts one process of a model."""
        options = {"served_model_name": model, "drain_s": 300, **options}
        child = self.stack.start(
            stage, **({"token_delay_ms": 1} if stage == "worker" else {}), **options
        )
        self.of.setdefault(model, []).append(child)
        return child

    def start(self, model: str, **options: Any) -> None:
        """Starts a model; `options`: of its preprocessor."""
        for stage in STAGES:
            self.add(model, stage, **(options if stage == "preprocessor" else {}))

    async def stop(self, model: str) -> None:
        """Drains all processes of a model, at the same time."""
        for child in self.of[model]:
            child.terminate()

    def ended(self, model: str) -> list[int | None]:
        return [child.process.poll() for child in self.of[model]]


@pytest.fixture
def bus(make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path: Path) -> Iterator[Bus]:
    # What leaves here says so: silence is only a busy machine's.
    stack = Stack(make_nats(), demo_model, tmp_path, recovery_s=10, dead_after_s=60)
    try:
        stack.start("frontend")
        stack.start("frontend")
        yield Bus(stack)
    finally:
        stack.stop()


@pytest.fixture
async def clients(bus: Bus) -> AsyncIterator[list[Client]]:
    """One of each frontend."""
    opened = [Client(child.url) for child in bus.stack.of("frontend")]
    yield opened
    for client in opened:
        await client.http.close()


async def listed(client: Client) -> set[str]:
    return {entry["id"] for entry in (await client.get("/v1/models"))[1]["data"]}


async def takes_turns(clients: list[Client], *models: str) -> None:
    """Waits until every frontend has every stage of these models."""
    for client in clients:

        async def there(client: Client = client) -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return set(models) <= set((await client.get("/health"))[1]["models"])
            return False

        await until(there, START_S)


async def preprocessors(clients: list[Client], count: int) -> None:
    """Waits until every frontend has `count` preprocessors."""
    for client in clients:

        async def there(client: Client = client) -> bool:
            return len((await client.get("/health"))[1]["stages"]["preprocessor"]) == count

        await until(there, START_S)


async def served(client: Client, model: str) -> int:
    """How many turns of a model this frontend has finished."""
    async with client.http.get(f"{client.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    name = "turnwire_e2e_request_latency_seconds_count{"
    return sum(
        int(float(line.split()[-1]))
        for line in lines
        if line.startswith(name) and f'model="{model}"' in line
    )


@pytest.mark.slow
async def test_a_new_version_takes_over_without_a_lost_stream(
    bus: Bus, clients: list[Client]
) -> None:
    one, other = clients
    bus.start("coder-1", aliases="coder")
    await takes_turns(clients, "coder-1")
    old = await start(one, "coder", "s1", "s2", "s3")

    # Side by side: the old version's preprocessor is replaced by one that gets no new sessions.
    bus.start("coder-2", aliases="coder")
    first = next(child for child in bus.of["coder-1"] if child.stage == "preprocessor")
    bus.add("coder-1", "preprocessor", aliases="coder", alias_weight=0)
    await takes_turns(clients, "coder-1", "coder-2")
    await preprocessors(clients, 3)
    first.terminate()
    assert await asyncio.to_thread(first.wait) == 0
    await preprocessors(clients, 2)  # the last one of the old version has no weight
    assert await listed(other) == {"coder-1", "coder-2", "coder"}

    before = await served(other, "coder-1"), await served(other, "coder-2")
    new = await start(other, "coder", "n1", "n2", "n3")
    kept = await start(
        other, "coder", "s1", "s2", "s3"
    )  # the other frontend knows where these sessions are
    for streams in (old, new, kept):
        await finish(streams)

    async def divided() -> bool:
        return (await served(other, "coder-1"), await served(other, "coder-2")) == (
            before[0] + 3,
            before[1] + 3,
        )

    await until(divided)

    # The last sessions of the old version go on, on the new one.
    last = await start(one, "coder", "s1", "s2", "s3")
    await bus.stop("coder-1")
    moved = await start(one, "coder", "s1", "s4")
    await finish([*last, *moved])
    await until(lambda: asyncio.sleep(0, bus.ended("coder-1") == [0] * (len(STAGES) + 1)))
    assert (await other.stream(ask("coder", SHORT, "s2"))).stop_reason == "end_turn"

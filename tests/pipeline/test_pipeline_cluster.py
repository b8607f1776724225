"""A cluster of three NATS servers: one that hangs or dies costs no stream, and no new request
fails."""

import asyncio
import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.commands.make_buckets import make_buckets
from services.runtime.config import BucketsConfig, BusConfig
from tests.kit.messages_client import Answer, Client, body, call, say
from tests.kit.nats import NatsServer, free_port, suspend
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.slow

STREAMS = 16
OUTPUT = (
    "Thinking.\n</think>\n\nBefore.\n\n{delay}" + call("ls") + "\n\n[[fill 400]]" + call("date")
)
SHORT = "Hm.\n</think>\n\nYes."
COUNTS = {"worker": 1, "parser": 1, "preprocessor": 1}
HANG_S = 35.0
NOTICED_S = 20.0
"""Limit for a new request: a process leaves a server that hangs after 4 to 6 s. It once noticed
that after 30 s."""


class Node:
    """One server of the cluster."""

    def __init__(self, binary: str, directory: Path, number: int, routes: list[int]) -> None:
        self.port, self.monitor, self.name = free_port(), free_port(), f"n{number}"
        self._argv = [binary, "-c", str(directory / f"{self.name}.conf")]
        config = {
            "server_name": self.name,
            "host": "127.0.0.1",
            "port": self.port,
            "http": f"127.0.0.1:{self.monitor}",
            "max_payload": 8 << 20,
            "jetstream": {"store_dir": str(directory / self.name), "max_file_store": 2 << 30},
            "cluster": {
                "name": "turnwire",
                "listen": f"127.0.0.1:{routes[number]}",
                "routes": [f"nats://127.0.0.1:{port}" for port in routes],
            },
        }
        (directory / f"{self.name}.conf").write_text(json.dumps(config))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def read(self, path: str) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.monitor}/{path}", timeout=LIMIT_S
        ) as answer:
            return json.loads(answer.read())


class Cluster(NatsServer):
    """Three servers, with three copies of each bucket."""

    def __init__(self, binary: str, directory: Path) -> None:
        routes = [free_port() for _ in range(3)]
        self.nodes = [Node(binary, directory, number, routes) for number in range(3)]

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{node.port}" for node in self.nodes)

    def make_buckets(self, **login: str) -> None:
        bus = BusConfig(nats_url=self.url, connect_timeout_s=LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                asyncio.run(
                    make_buckets(BucketsConfig(bus=bus, ledger_store_mb=64, bucket_replicas=3))
                )
                return
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def leader_of(self, stream: str) -> Node:
        """The server that leads a bucket."""
        found = self.nodes[0].read("jsz?streams=1&leader=1&config=0&accounts=1")
        details = [one for account in found["account_details"] for one in account["stream_detail"]]
        leader = next(one["cluster"]["leader"] for one in details if one["name"] == stream)
        return next(node for node in self.nodes if node.name == leader)

    def stop(self) -> None:
        for node in self.nodes:
            node.process.kill()
            node.process.wait()


class Load:
    """Streams in progress."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._expected: list[tuple[str, Any]] = []
        self._tasks: list[asyncio.Task[Answer]] = []

    async def start(self, stack: Stack) -> "Load":
        self._expected = (await self._client.stream(body(say(OUTPUT.format(delay=""))))).contents
        request = body(say(OUTPUT.format(delay="[[delay 20]]")))
        self._tasks = [asyncio.create_task(self._client.stream(request)) for _ in range(STREAMS)]
        await eventually(lambda: stack.health().get("turns") == STREAMS)
        await asyncio.sleep(2)
        return self

    async def whole(self) -> None:
        """Each stream has ended well, with every byte once and in its place."""
        for task in self._tasks:
            answer = await asyncio.wait_for(task, 2 * LIMIT_S)
            assert answer.error is None, answer.error
            assert answer.contents == self._expected


@pytest.fixture(scope="module")
def cluster(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(nats_binary, tmp_path_factory.mktemp("cluster"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def clustered(
    cluster: Cluster, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    running = Stack(cluster, demo_model, tmp_path_factory.mktemp("clustered"))
    try:
        yield running.start_all({**COUNTS, "frontend": 2}, frontend={"response_store": "shared"})
    finally:
        running.stop()


@pytest.fixture
async def client(clustered: Stack) -> AsyncIterator[Client]:
    found = Client(clustered.url)
    yield found
    await found.http.close()


@pytest.mark.parametrize("fault", ["hang", "kill"])
async def test_leader_of_a_bucket_that_hangs_or_dies_costs_nothing(
    cluster: Cluster, clustered: Stack, client: Client, fault: str
) -> None:
    """Faults of any server, with any number of them, are drawn by `simulation`."""
    stored = [await store(clustered, client) for _ in range(int(HANG_S / 2) + 2)]
    load = await Load(client).start(clustered)
    node = await asyncio.to_thread(cluster.leader_of, "KV_tw_responses")
    if fault == "hang":
        suspend(node.process)
    else:
        node.process.kill()
    try:
        until = time.monotonic() + HANG_S
        new = []
        while time.monotonic() < until:
            new += [
                asyncio.create_task(timed(one))
                for one in (say_yes(client), go_on(client, stored.pop()))
            ]
            await asyncio.sleep(2)
    finally:
        if fault == "hang":
            node.process.send_signal(signal.SIGCONT)
        else:
            node.process.wait()
            node.start()
    durations = [await asyncio.wait_for(task, 2 * LIMIT_S) for task in new]
    assert max(durations) < NOTICED_S, durations
    await load.whole()
    await say_yes(client)


async def timed(work: Awaitable[None]) -> float:
    """Awaits an answer; returns the seconds that it took."""
    begun = time.monotonic()
    await work
    return time.monotonic() - begun


async def say_yes(client: Client) -> None:
    assert (await client.stream(body(say(SHORT)))).contents[-1] == ("text", "Yes.")


async def store(stack: Stack, client: Client) -> str:
    """Stores a response by way of the second frontend; the first one can read it in the bucket
    only."""
    other = stack.of("frontend")[1].url
    async with client.http.post(
        f"{other}/v1/responses", json={"model": MODEL, "input": say(SHORT)}
    ) as response:
        document = await response.json()
    assert document.get("status") == "completed", document
    return str(document["id"])


async def go_on(client: Client, previous: str) -> None:
    """Continues a stored response."""
    ask = {"model": MODEL, "input": say(SHORT), "previous_response_id": previous}
    status, document = await client.post("/v1/responses", ask)
    assert (status, document.get("status")) == (200, "completed"), document

"""Stores that frontends share over a real bus."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger
from typing_extensions import override

from services.frontend.peers import BusPeers, Peers
from services.frontend.stored.memory import StoreLimits
from services.frontend.stored.shared import SharedStore, bucket_config
from services.runtime.config.frontend import FrontendConfig
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket
from tests.kit.events import finish, text
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.processes import MakeProcess, make_bucket

SHARED = FrontendConfig(response_store="shared")


class KnownPeers(BusPeers):
    """The frontends on the bus, of which those run that a test lists."""

    def __init__(self, process: Process, living: list[str]) -> None:
        super().__init__(process)
        self._living = living

    @override
    def is_alive(self, frontend: str) -> bool:
        return frontend in self._living


def shared_store(
    process: Process, bucket: Bucket, peers: Peers, config: FrontendConfig
) -> SharedStore:
    """The store of one frontend."""
    limits = StoreLimits.of(config)
    return SharedStore(limits, time.time, bucket, peers, process.log, spawn=process.spawn)


@dataclass
class Pair:
    """Two frontends; `go` lets their turns end, `living` has the ids of their processes. `bucket`:
    as the second one sees it."""

    one: Served
    other: Served
    processes: list[Process]
    bucket: Bucket
    go: asyncio.Event
    living: list[str]


@asynccontextmanager
async def pairing(
    make_process: MakeProcess,
    log: FilteringBoundLogger,
    reader: Callable[[Bucket], Bucket] = lambda bucket: bucket,
) -> AsyncIterator[Pair]:
    """Runs two frontends that share their store. `reader`: makes the bucket as the second one sees
    it."""
    go = asyncio.Event()
    processes = [await make_process("frontend", "f1"), await make_process("frontend", "f2")]
    living = [process.id for process in processes]
    buckets = [await make_bucket(process.bus, bucket_config(SHARED), log) for process in processes]
    buckets[1] = reader(buckets[1])
    stores = [
        shared_store(process, bucket, KnownPeers(process, living), SHARED)
        for process, bucket in zip(processes, buckets, strict=True)
    ]
    gateways = [FakeGateway(lambda: [[*text(0, "So far")], go, [finish(1)]]) for _ in stores]
    async with (
        serving(gateways[0], SHARED, stored=stores[0]) as one,
        serving(gateways[1], SHARED, stored=stores[1]) as other,
    ):
        yield Pair(one, other, processes, buckets[1], go, living)
        go.set()

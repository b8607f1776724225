"""Runs two frontends that share their store over a real nats-server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.control import ResponseCancelled, ResponseDeleted, decode_notice
from services.frontend.apis.responses.state.store import Sharing, bucket_config
from services.runtime.bus import Delivery
from services.runtime.config import FrontendConfig
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket
from tests.frontend.responses.responses_client import Client
from tests.kit.events import finish, text
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.processes import MakeProcess, make_bucket

CONFIG = FrontendConfig(response_store="shared")


@dataclass
class Pair:
    """Two frontends; `go` lets their turns end, `living` has the ids of their processes. `bucket`:
    as the second one sees it."""

    one: Served
    other: Served
    ask_one: Client
    ask_other: Client
    bucket: Bucket
    go: asyncio.Event
    living: list[str]


async def share(process: Process, log: FilteringBoundLogger, living: list[str]) -> Sharing:
    """Creates the bucket, and returns a process's access to it."""
    bucket = await make_bucket(process.bus, bucket_config(CONFIG), log)
    living.append(process.id)
    return Sharing(
        bucket,
        process.id,
        lambda id: id in living,
        lambda notice: process.publish(subjects.frontends(), notice),
        process.spawn,
    )


@asynccontextmanager
async def pairing(
    make_process: MakeProcess,
    log: FilteringBoundLogger,
    reader: Callable[[Bucket], Bucket] = lambda bucket: bucket,
) -> AsyncIterator[Pair]:
    """Runs both frontends. `reader`: makes the bucket as the second one sees it."""
    living: list[str] = []
    go = asyncio.Event()
    processes = [await make_process("frontend", "f1"), await make_process("frontend", "f2")]
    shares = [await share(process, log, living) for process in processes]
    shares[1] = msgspec.structs.replace(shares[1], bucket=reader(shares[1].bucket))
    gateways = [FakeGateway(lambda: [[*text(0, "So far")], go, [finish(1)]]) for _ in shares]
    async with (
        serving(gateways[0], CONFIG, sharing=shares[0]) as one,
        serving(gateways[1], CONFIG, sharing=shares[1]) as other,
    ):
        for process, served in zip(processes, (one, other), strict=True):

            def apply(delivery: Delivery, served: Served = served) -> None:
                notice = decode_notice(delivery.data)
                assert isinstance(notice, ResponseCancelled | ResponseDeleted)
                served.responses.apply_notice(notice)

            await process.subscribe(subjects.frontends(), apply)
            await process.bus.flush()
        clients = (Client(one.http, one), Client(other.http, other))
        yield Pair(one, other, *clients, shares[1].bucket, go, living)
        go.set()

"""Runs two frontends that share their store over a real nats-server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import ClientSession
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.control import ResponseCancelled, ResponseDeleted, decode_notice
from services.frontend.apis.responses.state.store import Sharing, bucket_config
from services.runtime.bus import Delivery
from services.runtime.config import FrontendConfig
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket
from tests.frontend.responses.responses_client import Client
from tests.kit.events import Step, finish, text
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.processes import MakeProcess, make_bucket

CONFIG = FrontendConfig(response_store="shared")


class Pair:
    """Two frontends; `go` lets their turns end, `living` has the ids of their processes."""

    def __init__(
        self,
        one: Served,
        other: Served,
        http: ClientSession,
        bucket: Bucket,
        go: asyncio.Event,
        living: list[str],
    ) -> None:
        self.one, self.other = one, other
        self.http = http
        self.ask_one, self.ask_other = Client(http, one), Client(http, other)
        self.bucket, self.go, self.living = bucket, go, living


def paired_turn(go: asyncio.Event) -> list[Step]:
    """The steps of the model's turn."""
    return [[*text(0, "So far")], go, [finish(1)]]


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
    config: FrontendConfig = CONFIG,
    reader: Callable[[Bucket], Bucket] = lambda bucket: bucket,
) -> AsyncIterator[Pair]:
    """Runs both frontends. `reader`: makes the bucket as the second one sees it."""
    living: list[str] = []
    go = asyncio.Event()
    one_process, other_process = (
        await make_process("frontend", "f1"),
        await make_process("frontend", "f2"),
    )
    shares = [await share(one_process, log, living), await share(other_process, log, living)]
    shares[1] = msgspec.structs.replace(shares[1], bucket=reader(shares[1].bucket))
    async with (
        serving(FakeGateway(lambda: paired_turn(go)), config, sharing=shares[0]) as one,
        serving(FakeGateway(lambda: paired_turn(go)), config, sharing=shares[1]) as other,
        ClientSession() as http,
    ):
        for process, served in ((one_process, one), (other_process, other)):

            def apply(delivery: Delivery, served: Served = served) -> None:
                notice = decode_notice(delivery.data)
                assert isinstance(notice, ResponseCancelled | ResponseDeleted)
                served.responses.apply_notice(notice)

            await process.subscribe(subjects.frontends(), apply)
            await process.bus.flush()
        yield Pair(one, other, http, shares[1].bucket, go, living)
        go.set()

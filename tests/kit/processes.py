"""Processes of a stage, connected to a real nats-server."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import structlog
from structlog.typing import FilteringBoundLogger

from schemas.control import Load, ModelCard, Stage
from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.nats.bus import Bus
from services.runtime.presence.heartbeats import Service
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from tests.kit.nats import NatsServer
from tests.kit.waiting import eventually


@pytest.fixture
def quiet_log() -> FilteringBoundLogger:
    """A logger that writes nothing below `critical`."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(), wrapper_class=structlog.make_filtering_bound_logger(50)
    )
    return log


async def make_bucket(bus: Bus, config: BucketConfig, log: FilteringBoundLogger) -> Bucket:
    """A bucket that exists."""
    await create_bucket(bus, config)
    return Bucket(bus, config, log)


MakeProcess = Callable[..., Awaitable[Process]]


class Reported(Service):
    """A service that only reports these models and this load."""

    def __init__(self, *models: ModelCard, load: Load | None = None) -> None:
        self.models = models
        self._load = load or Load()

    def load(self) -> Load:
        return self._load


@pytest.fixture
async def make_process(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> AsyncIterator[MakeProcess]:
    """Connected processes, which send a heartbeat at each `process.heartbeats.send()`; closed at the
    end."""
    processes: list[Process] = []

    async def make(
        stage: Stage, name: str, *, url: str = "", drain_s: float = 30.0, **bus: object
    ) -> Process:
        config = ServiceConfig(
            id=name,
            drain_s=drain_s,
            bus=BusConfig(nats_url=url or nats.url, **bus),  # type: ignore[arg-type]
        )
        process = Process(stage, config, quiet_log)
        await process.connect()
        processes.append(process)
        return process

    yield make
    for process in processes:
        await process.bus.close()


async def ready(process: Process) -> None:
    """Waits until a process has announced itself: its first heartbeats are those of a draining
    process."""
    await eventually(lambda: process.draining)
    await eventually(lambda: not process.draining)

"""A process and its bus in memory: what a frontend asks for, publishes and subscribes to."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from schemas.control import INNER_STAGES, Heartbeat, ModelCard, Stage
from schemas.requests import TurnRequest
from services.runtime.config.frontend import FrontendConfig
from services.runtime.nats.bus import Delivery
from services.runtime.presence.registry import ProcessRegistry

Struct = TypeVar("Struct", bound=msgspec.Struct)


def announce(
    registry: ProcessRegistry,
    card: ModelCard,
    name: str = "1",
    *,
    stages: tuple[Stage, ...] = INNER_STAGES,
    at: float = 0.0,
    draining: bool = False,
    leaving: bool = False,
) -> None:
    """A process `name` of each stage sends a heartbeat at time `at`."""
    for stage in stages:
        heartbeat = Heartbeat(
            stage, f"{stage}-{name}", models=[card], draining=draining, leaving=leaving
        )
        registry.receive(heartbeat, at)


class FakeBus:
    """A bus on which a preprocessor accepts every request. `fail`, if set, is called instead, for
    one request."""

    connected = True

    def __init__(self) -> None:
        self.requests: list[TurnRequest] = []
        self.subjects: list[str] = []
        self.fail: Callable[[], None] | None = None

    def ask(
        self, subject: str, data: bytes, _timeout_s: float, known: Callable[[bytes], None]
    ) -> Callable[[], None]:
        if self.fail is not None:
            fail, self.fail = self.fail, None
            fail()
        self.requests.append(msgspec.json.decode(data, type=TurnRequest))
        self.subjects.append(subject)
        known(b"{}")
        return lambda: None


class FakeProcess:
    """What a gateway uses of a process. The model `m` is served."""

    id = "frontend-1"
    tracer = None
    draining = False
    failure = None
    cut_off = False

    def __init__(self, config: FrontendConfig | None = None) -> None:
        self.config = config or FrontendConfig()
        self.log = structlog.get_logger()
        self.metrics = CollectorRegistry()
        self.registry = ProcessRegistry(3.5)
        announce(self.registry, ModelCard("m"))
        self.bus = FakeBus()
        self.published: list[msgspec.Struct] = []
        self.handlers: dict[str, Callable[[Delivery], None]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.on_tick: list[Callable[[float], None]] = []
        self.on_attached: list[Callable[[], None]] = []
        self.on_reconnect: list[Callable[[], None]] = []

    async def subscribe(self, subject: str, handler: Callable[[Delivery], None]) -> None:
        self.handlers[subject] = handler

    def publish(self, _subject: str, message: msgspec.Struct) -> bool:
        self.published.append(message)
        return True

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    def deliver(self, subject: str, message: msgspec.Struct) -> None:
        """Another process publishes a message."""
        bus: Any = self.bus
        delivery = Delivery(bus, subject, msgspec.json.encode(message), "")
        self.handlers[subject](delivery)

    def published_of(self, kind: type[Struct]) -> list[Struct]:
        """The published messages of one type."""
        return [message for message in self.published if isinstance(message, kind)]

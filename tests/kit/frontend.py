"""A pipeline in memory: plays written events into the sinks of the routes under test."""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from schemas.control import ModelCard
from schemas.conversation import Conversation, Message
from schemas.errors import NotFound, TurnwireError
from schemas.events import (
    Prepared,
)
from schemas.frames import TextReply, pack_ids, unpack_ids
from services.frontend.apis.responses.state.server import RESPONSES, ResponsesServer
from services.frontend.apis.responses.state.store import Sharing
from services.frontend.app import CALLERS, Buckets, Telemetry, make_app, make_runner
from services.frontend.content.image import without_images
from services.frontend.http.auth import Callers
from services.frontend.http.tls import Tls
from services.frontend.media.image_fetch import ImageFetcher, public_connector
from services.frontend.media.image_reader import ImageReader, PutImage
from services.frontend.media.pdf_reader import PdfReader
from services.frontend.turns.admission import Admission
from services.frontend.turns.conversation_limits import ConversationLimits
from services.frontend.turns.interfaces import Admitted, CancelReason, Pipeline, TurnSink
from services.runtime.config import FrontendConfig
from tests.kit.events import Step, hello

MODEL = "acme/served-model"
CARD = ModelCard(
    MODEL,
    aliases=["claude-alias"],
    max_model_len=131072,
    created=1700000000,
    reasoning=True,
    tools=True,
)


class FakeTurn:
    def __init__(
        self, turn_id: str, card: ModelCard, conversation: Conversation, sink: TurnSink
    ) -> None:
        self.id = turn_id
        self.card = card
        self.prepared = Prepared(656, 1024)
        self.conversation = conversation
        self.sink = sink
        self.cancelled: list[CancelReason] = []
        self.cancel_seen = asyncio.Event()
        self.player: asyncio.Task[None] | None = None

    def cancel(self, reason: CancelReason) -> None:
        self.cancelled.append(reason)
        self.cancel_seen.set()
        if self.player is not None:
            self.player.cancel()

    async def play(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                self.sink.push(step)
                await asyncio.sleep(0)  # what comes in one tick leaves as one


class FakeGateway:
    """Steps before `opened_after` are played while `open` is still awaited."""

    def __init__(
        self, steps: Callable[[], list[Step]] = hello, cards: list[ModelCard] | None = None
    ) -> None:
        self.catalog = self.gateway = self.texts = self
        self.steps = steps
        self.cards = [CARD] if cards is None else cards
        self.opened_after = 0
        self.refusal: TurnwireError | None = None
        self.hold: asyncio.Event | None = None
        self.opening = asyncio.Event()
        self.open_cancelled = asyncio.Event()
        self.turns: list[FakeTurn] = []
        self.counted: list[Conversation] = []
        self.tokenized: list[tuple[str, str | None, Conversation | None, bool]] = []
        self.ready = True
        self.any_model = False

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> FakeTurn:
        self.opening.set()
        if self.refusal is not None:
            raise self.refusal
        turn = FakeTurn(turn_id, admitted.card, admitted.conversation, sink)
        self.turns.append(turn)
        try:
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.open_cancelled.set()
            raise
        steps = self.steps()
        await turn.play(steps[: self.opened_after])
        turn.player = asyncio.get_running_loop().create_task(turn.play(steps[self.opened_after :]))
        return turn

    async def drain(self) -> None:
        pass

    async def count(self, admitted: Admitted) -> int:
        self.counted.append(admitted.conversation)
        return 4321

    async def tokenize(
        self, admitted: Admitted, text: str | None, add_special_tokens: bool
    ) -> TextReply:
        conversation = admitted.conversation if text is None else None
        self.tokenized.append((admitted.card.name, text, conversation, add_special_tokens))
        ids = [len(word) for word in (text or "a whole prompt").split()]
        return TextReply(count=len(ids), token_ids=pack_ids(ids), max_model_len=131072)

    async def detokenize(self, admitted: Admitted, token_ids: list[int]) -> TextReply:
        return TextReply(text=" ".join("x" * min(i, 9) for i in unpack_ids(pack_ids(token_ids))))

    def models(self) -> list[ModelCard]:
        return self.cards

    def resolve(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        for card in self.cards:
            if self.any_model or model == card.name or model in card.aliases:
                return card
        raise NotFound(f"model: {model}")

    def readiness(self) -> dict[str, Any]:
        return {"ready": self.ready, "models": [card.name for card in self.cards]}

    def live(self) -> bool:
        return self.ready


def messages_as_notes(conversation: Conversation) -> list[Message]:
    """The messages as a model without vision gets them."""
    return without_images(conversation).messages


def admission(pipeline: Pipeline, put_image: PutImage | None = None) -> Admission:
    """Admits whatever a caller without limits sends."""
    limits = ConversationLimits(messages=10**6, tools=10**6, media=10**6, nesting=10**6)
    fetcher = ImageFetcher([], structlog.get_logger(), public_connector)
    pdfs, images = (
        PdfReader(structlog.get_logger(), 1),
        ImageReader(FrontendConfig(), put_image, fetcher),
    )
    return Admission(pipeline, pipeline.gateway, limits, pdfs, images, notices=False)


def log_into(lines: list[MutableMapping[str, Any]]) -> FilteringBoundLogger:
    capture = structlog.testing.LogCapture()
    capture.entries = lines
    log: FilteringBoundLogger = structlog.wrap_logger(structlog.PrintLogger(), processors=[capture])
    return log


class Served:
    """A running application."""

    def __init__(
        self,
        url: str,
        gateway: FakeGateway,
        registry: CollectorRegistry,
        lines: list[MutableMapping[str, Any]],
        callers: Callers,
        responses: ResponsesServer,
    ) -> None:
        self.callers = callers
        self.responses = responses
        self.url = url
        self.gateway = gateway
        self.registry = registry
        self.lines = lines

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def serving(
    gateway: FakeGateway | None = None,
    config: FrontendConfig | None = None,
    *,
    tls: Tls | None = None,
    sharing: Sharing | None = None,
    put_image: PutImage | None = None,
) -> AsyncIterator[Served]:
    """The application on a real port, as `make_runner` runs it."""
    gateway = gateway or FakeGateway()
    registry = CollectorRegistry()
    lines: list[MutableMapping[str, Any]] = []
    log = log_into(lines)
    config = config or FrontendConfig()
    app = make_app(config, gateway, Telemetry(registry, log), Buckets(put_image, sharing))
    runner = make_runner(app, config, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.context if tls else None)
    await site.start()
    try:
        url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        yield Served(url, gateway, registry, lines, app[CALLERS], app[RESPONSES])
    finally:
        await runner.cleanup()

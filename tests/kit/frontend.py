"""A pipeline in memory: plays written events into the sinks of the routes under test."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from aiohttp import ClientSession, web
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from schemas.control import EngineControl, EngineState, ModelCard
from schemas.conversation import Conversation, Message
from schemas.errors import NotFound, TurnwireError
from schemas.events import Prepared, TurnEvent
from schemas.requests import TextReply
from schemas.token_ids import pack_ids, unpack_ids
from services.frontend.apis.responses.state.running_responses import RunningResponses
from services.frontend.app import Buckets, FrontendApp, Telemetry, make_app, make_runner
from services.frontend.content.image import without_images
from services.frontend.http.auth import Callers
from services.frontend.http.tls import Tls
from services.frontend.media.image_decoder import ImageDecoder
from services.frontend.media.image_fetch import ImageFetcher, public_connector
from services.frontend.media.image_reader import ImageReader, PutImage
from services.frontend.media.media_reader import MediaReader
from services.frontend.media.pdf_reader import PdfReader
from services.frontend.models.catalog import allow_all
from services.frontend.models.shared_names import ModelFilter
from services.frontend.peers import NO_PEERS, Peers
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.stored.memory import MemoryStore, StoreLimits
from services.frontend.stored.shared import SharedStore
from services.frontend.turns.admission import Admission
from services.frontend.turns.cancel_scope import reason_of
from services.frontend.turns.conversation_limits import ConversationLimits
from services.frontend.turns.hidden.memory import HiddenMemory
from services.frontend.turns.interfaces import Admitted, CancelReason, OpenTurn, Pipeline, TurnSink
from services.frontend.turns.key_usage import KeyUsage
from services.frontend.turns.metrics import FrontendMetrics
from services.frontend.turns.turn_service import TurnService
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL, messages
from tests.kit.events import Step, hello
from tests.kit.rollouts import MemoryRollouts

ABILITIES: dict[str, Any] = {"reasoning": True, "tools": True}
CARD = ModelCard(
    MODEL, aliases=["claude-alias"], max_model_len=131072, created=1700000000, **ABILITIES
)


class FakeTurn:
    def __init__(
        self, turn_id: str, card: ModelCard, conversation: Conversation, sink: TurnSink
    ) -> None:
        self.id = turn_id
        self.card = card
        self.prepared = Prepared(prompt_tokens=656, max_tokens=1024)
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


async def nothing(_: FakeTurn) -> None:
    """What happens by default while a turn is opened."""


class FakeGateway:
    """`on_turn` is awaited in `open`, before any step; `on_resolve` returns the card of a model;
    `size` returns the tokens of a counted prompt. Each may raise an error to refuse a request, as
    `refusal` refuses all.
    """

    def __init__(
        self,
        steps: Callable[[], list[Step]] = hello,
        cards: list[ModelCard] | None = None,
        *,
        on_turn: Callable[[FakeTurn], Awaitable[None]] = nothing,
        on_resolve: Callable[[str, Conversation | None], ModelCard] | None = None,
        size: Callable[[Conversation], int] = lambda _: 4321,
    ) -> None:
        self.gateway = self
        self.catalog = self
        self.controls: list[tuple[str, EngineControl]] = []
        self.engine_states: list[EngineState] = []
        self.steps = steps
        self.cards = [CARD] if cards is None else cards
        self.on_turn = on_turn
        self.on_resolve = on_resolve or self._card
        self.size = size
        self.refusal: TurnwireError | None = None
        self.hold: asyncio.Event | None = None
        self.opening = asyncio.Event()
        self.open_cancelled = asyncio.Event()
        self.open_cancelled_for: CancelReason | None = None
        self.turns: list[FakeTurn] = []
        self.counted: list[Conversation] = []
        self.tokenized: list[tuple[str, str | None, Conversation | None, bool]] = []
        self.ready = True
        self.any_model = False

    @property
    def conversations(self) -> list[Conversation]:
        """What each turn was opened with."""
        return [turn.conversation for turn in self.turns]

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        self.opening.set()
        self._refuse()
        turn = FakeTurn(turn_id, admitted.card, admitted.conversation, sink)
        self.turns.append(turn)
        try:
            if self.hold is not None:
                await self.hold.wait()
            await self.on_turn(turn)
        except asyncio.CancelledError as error:
            self.open_cancelled_for = reason_of(error)
            self.open_cancelled.set()
            raise
        turn.player = asyncio.get_running_loop().create_task(turn.play(self.steps_of(turn)))
        return OpenTurn(turn.prepared, turn.cancel)

    def steps_of(self, _turn: FakeTurn) -> list[Step]:
        """What an open turn does."""
        return self.steps()

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def drain(self) -> None:
        pass

    async def count(self, admitted: Admitted) -> int:
        self._refuse()
        self.counted.append(admitted.conversation)
        return self.size(admitted.conversation)

    async def tokenize(
        self, admitted: Admitted, text: str | None, add_special_tokens: bool
    ) -> TextReply:
        self._refuse()
        conversation = admitted.conversation if text is None else None
        self.tokenized.append((admitted.card.name, text, conversation, add_special_tokens))
        ids = [len(word) for word in (text or "a whole prompt").split()]
        return TextReply(count=len(ids), token_ids=pack_ids(ids), max_model_len=131072)

    async def detokenize(self, admitted: Admitted, token_ids: list[int]) -> TextReply:
        self._refuse()
        return TextReply(text=" ".join("x" * min(i, 9) for i in unpack_ids(pack_ids(token_ids))))

    async def control(self, model: str, control: EngineControl) -> list[EngineState]:
        self._refuse()
        self.controls.append((model, control))
        return self.engine_states

    def models(self) -> list[ModelCard]:
        return self.cards

    def resolve(
        self,
        model: str,
        conversation: Conversation | None = None,
        allows: ModelFilter = allow_all,
    ) -> ModelCard:
        return self.on_resolve(model, conversation)

    def _card(self, model: str, _: Conversation | None) -> ModelCard:
        for card in self.cards:
            if self.any_model or model == card.name or model in card.aliases:
                return card
        raise NotFound(f"model: {model}")

    def readiness(self) -> dict[str, Any]:
        return {"ready": self.ready, "models": [card.name for card in self.cards]}

    def live(self) -> bool:
        return self.ready


def in_turn(*answers: list[TurnEvent] | TurnwireError, **options: Any) -> FakeGateway:
    """A gateway that plays one list of events for each turn; an error refuses one."""
    left = iter(answers)

    def steps() -> list[Step]:
        answer = next(left)
        if isinstance(answer, TurnwireError):
            raise answer
        half = len(answer) // 2
        return [answer[:half], answer[half:]] if half else [answer]

    return FakeGateway(steps, **options)


def messages_as_notes(conversation: Conversation) -> list[Message]:
    """The messages as a model without vision gets them."""
    return without_images(conversation).messages


def admission(pipeline: Pipeline, put_image: PutImage | None = None) -> Admission:
    """Admits whatever a caller without limits sends."""
    limits = ConversationLimits(messages=10**6, tools=10**6, media=10**6, nesting=10**6)
    fetcher = ImageFetcher([], structlog.get_logger(), public_connector)
    pdfs, decoder = PdfReader(structlog.get_logger(), 1), ImageDecoder(structlog.get_logger())
    images = ImageReader(FrontendConfig(), put_image, fetcher, decoder)
    store = MemoryStore(StoreLimits(60.0, 100, 1 << 20), time.time)
    hidden = HiddenMemory(store, time.time)
    media = MediaReader(pdfs, images)
    return Admission(pipeline.catalog, limits, media, hidden=hidden, notices=False)


def turn_service(pipeline: Pipeline) -> TurnService:
    """Opens turns and counts for whatever a caller without limits sends."""
    registry = CollectorRegistry()
    return TurnService(
        pipeline=pipeline,
        gateway=pipeline.gateway,
        admission=admission(pipeline),
        config=FrontendConfig(),
        metrics=FrontendMetrics(registry),
        usage=KeyUsage(0, NO_PEERS),
        log=structlog.get_logger(),
    )


def log_into(lines: list[MutableMapping[str, Any]]) -> FilteringBoundLogger:
    capture = structlog.testing.LogCapture()
    capture.entries = lines
    log: FilteringBoundLogger = structlog.wrap_logger(structlog.PrintLogger(), processors=[capture])
    return log


def key_line(name: str, key: str, options: str = "") -> str:
    """The line of a key in the file of keys."""
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()} {options}\n"


KEY = {"x-api-key": "alpha"}
"""The header with the key of `guarded`."""


def guarded(directory: Path, options: str = "", **config: Any) -> FrontendConfig:
    """A configuration with a file that has the key `alpha`."""
    path = directory / "keys"
    path.write_text(key_line("alpha", "alpha", options))
    return FrontendConfig(api_keys_file=str(path), **config)


@dataclass(frozen=True)
class Reply:
    """A response, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str]:
        """Status, type and message of a refusal."""
        error = self.json["error"]
        return self.status, error["type"], error["message"]


@dataclass
class Served:
    """A running application, and a client of it."""

    url: str
    gateway: FakeGateway
    registry: CollectorRegistry
    lines: list[MutableMapping[str, Any]]
    app: FrontendApp
    http: ClientSession

    @property
    def callers(self) -> Callers:
        return self.app.callers

    @property
    def responses(self) -> RunningResponses:
        return self.app.responses

    @property
    def rollouts(self) -> Rollouts:
        assert self.app.rollouts is not None, "no test is without"
        return self.app.rollouts

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def send(self, method: str, path: str, **options: Any) -> Reply:
        async with self.http.request(method, path, **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.send("GET", path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> Reply:
        return await self.send("POST", path, json=body, **options)

    async def ask(self, **fields: Any) -> Reply:
        """A request of Messages with further fields."""
        return await self.post("/v1/messages", messages(**fields))

    def none_open(self) -> bool:
        """No key has an open request."""
        return not any(self.app.callers.open_requests.values())


@asynccontextmanager
async def serving(
    gateway: FakeGateway | None = None,
    config: FrontendConfig | None = None,
    *,
    tls: Tls | None = None,
    stored: SharedStore | None = None,
    put_image: PutImage | None = None,
    rollouts: MemoryRollouts | None = None,
    peers: Peers | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Served]:
    """The application on a real port, as `make_runner` runs it. `headers`: what its client sends
    with each request."""
    gateway = gateway or FakeGateway()
    registry = CollectorRegistry()
    lines: list[MutableMapping[str, Any]] = []
    log = log_into(lines)
    config = config or FrontendConfig()
    rollouts = rollouts or MemoryRollouts()
    buckets = Buckets(put_image, stored, rollouts.store)
    app = make_app(config, gateway, Telemetry(registry, log), buckets, peers=peers or rollouts)
    runner = make_runner(app.web, config, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.context if tls else None)
    await site.start()
    try:
        url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        async with ClientSession(url, headers=headers) as http:
            yield Served(url, gateway, registry, lines, app, http)
    finally:
        await runner.cleanup()

"""Runs all four services in one event loop over a real nats-server, where a test can lose, change
and forge messages.

What a process does is observed from outside: its heartbeats, its messages on the bus, its engine.
The engine counts, and its words differ from worker to worker, as those of a sampled model would: an
answer that mixes the tokens of two decodings is detected.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import msgspec
from structlog.typing import FilteringBoundLogger
from typing_extensions import override

from schemas import subjects
from schemas.control import INNER_STAGES, Load, Stage
from schemas.conversation import Conversation, Message, Sampling, Text
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Failed,
    Finish,
    OutputTokens,
    TokenLogprob,
    TurnEvent,
    WeightsSpan,
)
from schemas.frames import TokenFrame
from schemas.requests import GenerateRequest, decode_generate, encode_generate
from services.frontend.gateway.gateway import BusGateway
from services.frontend.gateway.pipeline import BusPipeline
from services.frontend.http.auth import anyone
from services.frontend.peers import BusPeers
from services.frontend.turns.interfaces import OpenTurn
from services.frontend.turns.turn_service import TurnService
from services.ledger.turn_ledger import Ledger
from services.parser.service import Parser
from services.parser.shard import Shard
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.service import Preprocessor
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.nats.bus import Delivery, Handler
from services.runtime.nats.connection import Subscription
from services.runtime.presence.heartbeats import Service as StageService
from services.runtime.process import Process
from services.worker.engine_controls import EngineControls
from services.worker.service import Worker
from simulation.loop import Machine
from tests.kit.counting import QUEUE, CountingEngine, Model, Plan
from tests.kit.frontend import admission, turn_service
from tests.kit.nats import NatsServer
from tests.kit.sinks import RecordingSink
from tests.kit.waiting import LIMIT_S, eventually
from tests.kit.world import SimulatedNats, VirtualLoop

Silence = Literal["cut", "mute", "frozen"]
"""A process loses all messages, or only its own, or is suspended as by SIGSTOP."""
SILENCES: Final[tuple[Silence, ...]] = get_args(Silence)

_decode_tokens = msgspec.json.Decoder(TokenFrame).decode


class Sink(RecordingSink):
    """Also checks that texts and token ids have no gap."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()
        self.texts: list[str] = []
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob | None] = []
        self.weights: list[WeightsSpan] = []

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        super().push(events, tokens)
        if isinstance(events[-1], Finish):
            assert events[-1].usage.kept - tokens in (0, 1), "all but the end token"
        for event in events:
            if isinstance(event, BlockStart):
                assert event.block == len(self.texts)
                self.texts.append("")
            elif isinstance(event, Delta):
                assert (event.block, event.offset) == (len(self.texts) - 1, len(self.texts[-1]))
                self.texts[-1] += event.text
            elif isinstance(event, BlockStop):
                assert (event.block, event.length) == (len(self.texts) - 1, len(self.texts[-1]))
            elif isinstance(event, OutputTokens):
                assert event.at == len(self.ids)
                assert event.logprobs is None or len(event.logprobs) == len(event.ids)
                self.ids += event.ids
                self.logprobs += event.logprobs or []
                self.weights += event.weights
            else:
                assert isinstance(event, Finish | Failed)
                assert event is events[-1]
                self.done.set()

    @property
    def words(self) -> int:
        return len(" ".join(self.texts).split())

    async def words_at_least(self, count: int) -> None:
        await eventually(lambda: self.words >= count)


class Frontend(StageService):
    """A frontend without HTTP."""

    def __init__(self, pipeline: BusPipeline) -> None:
        self._gateway = pipeline.gateway
        self.drain = self._gateway.drain  # type: ignore[method-assign]

    def load(self) -> Load:
        return Load(running=self._gateway.running)


class Service:
    """One service in the loop, with its process, which is not connected yet."""

    def __init__(
        self,
        stage: Stage,
        process: Process,
        core: Any,
        machine: Machine | None,
        engine: Any = None,
    ) -> None:
        """`machine`: runs its callbacks in virtual time."""
        self.machine = machine
        self.stage = stage
        self.process = process
        self.core = core
        self.reported: StageService = Frontend(core) if stage == "frontend" else core
        self.running: asyncio.Task[None] | None = None
        self.cut = False
        """Messages are lost in both directions."""
        self.mute = False
        """Its own messages are lost; it receives all others, as a process that freezes and
        thaws."""
        self.losing: list[Callable[[str], bool]] = []
        """A message is lost on its way out where one of these returns True for its subject."""
        self.watching: list[Callable[[str, bytes], None]] = []
        """Called with subject and data of each message that is published, also where it is lost
        afterwards."""
        self.changing: list[tuple[str, Callable[[bytes], bytes]]] = []
        """(part of a subject, change): applied to messages on their way out and in."""
        self.received: dict[str, int] = {}
        """Turn → the output token up to which the process has received its token stream."""
        self._engine = engine
        bus = process.bus
        send, listen = bus.publish, bus.subscribe

        def publish(subject: str, data: bytes, *, reply_to: str = "") -> bool:
            data = self._changed(subject, data)
            for watch in self.watching:
                watch(subject, data)
            if self.cut or self.mute or any(lose(subject) for lose in self.losing):
                return bus.connected
            return send(subject, data, reply_to=reply_to)

        async def subscribe(subject: str, handler: Handler) -> Subscription:
            def handle(delivery: Delivery) -> None:
                if not self.cut:
                    data = self._changed(delivery.subject, delivery.data)
                    handler(Delivery(bus, delivery.subject, data, delivery.reply_to))
                    if subject == subjects.tokens(process.id):
                        self._note(data)

            return await listen(subject, handle)

        bus.publish, bus.subscribe = publish, subscribe  # type: ignore[method-assign]

    @property
    def id(self) -> str:
        return self.process.id

    @property
    def engine(self) -> Any:
        """The engine of a worker, usually a `CountingEngine`."""
        assert self._engine is not None
        return self._engine

    @property
    def turns(self) -> int:
        """How many turns the process has, as its heartbeats report."""
        return self.reported.load().running

    @property
    def alive(self) -> bool:
        return self.running is not None and not self.running.done()

    def peer(self, other: "Service") -> bool:
        """Whether this process counts the other one among the living."""
        return self.process.registry.get(other.stage, other.id) is not None

    def _changed(self, subject: str, data: bytes) -> bytes:
        for part, change in self.changing:
            if part in subject:
                data = change(data)
        return data

    def _note(self, data: bytes) -> None:
        for entry in _decode_tokens(data).entries:
            self.received[entry.turn] = max(
                self.received.get(entry.turn, 0), entry.at + len(entry.ids)
            )

    def lose(self, subject_part: str, count: int = 1) -> list[str]:
        """Loses the next `count` messages on subjects with this text; returns the list of those
        that were lost."""
        lost: list[str] = []

        def matches(subject: str) -> bool:
            if subject_part in subject and len(lost) < count:
                lost.append(subject)
                return True
            return False

        self.losing.append(matches)
        return lost

    def silence(self, how: Silence) -> None:
        """Nothing is heard of it until `speak`."""
        if how == "frozen":
            assert self.machine is not None
            self.machine.frozen = True
        else:
            setattr(self, how, True)

    def speak(self) -> None:
        self.cut = self.mute = False
        loop = asyncio.get_running_loop()
        if self.machine is not None and isinstance(loop, VirtualLoop):
            loop.resume(self.machine)

    async def leave(self) -> None:
        """Drains and ends."""
        assert self.running is not None
        self.process.stop()
        await self.running

    async def kill(self) -> None:
        """Ends without a message to anyone."""
        self.cut = True
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        if self._engine is not None:
            await self._engine.stop(0)


class Local:
    """A pipeline in this loop."""

    def __init__(
        self, nats: NatsServer | SimulatedNats, model: Model, log: FilteringBoundLogger, **bus: Any
    ) -> None:
        self.nats = nats
        self.model = model
        self.log = log
        self.bus = BusConfig(
            nats_url=nats.url, **{"beat_interval_s": 0.1, "dead_after_s": 1.0, **bus}
        )
        self.services: list[Service] = []
        self.plans: dict[str, Plan] = {}
        self.block_tokens: int | None = None
        """Size of a block of the workers' prefix caches; None: they have none."""
        self.shares_queued = False
        """Whether the workers' engines share what queued prompts have in common."""
        self.drain_s = 5.0
        self.weights_dir: str | None = None
        self._turns = 0
        self._parsers: dict[str, str] = {}
        """The parser to which the token stream of each turn was sent last."""

    async def add(self, stage: Stage, *, model: Model | None = None, **config: Any) -> Service:
        """Starts one process of a stage, in virtual time on a machine of its own."""
        if isinstance(self.nats, SimulatedNats):
            machine = Machine(f"{stage}{len(self.services)}")
            work = self._add(stage, machine, model or self.model, config)
            return await asyncio.create_task(work, context=machine.context)
        return await self._add(stage, None, model or self.model, config)

    async def _add(
        self, stage: Stage, machine: Machine | None, model: Model, config: dict[str, Any]
    ) -> Service:
        common: dict[str, Any] = {"id": stage, "bus": self.bus, "drain_s": self.drain_s, **config}
        engine: Any = None
        if stage == "frontend":
            frontend = FrontendConfig(**common)
            process = Process(stage, frontend, self.log)
            core: Any = BusPipeline(process, frontend, BusPeers(process))
        else:
            process = Process(stage, ServiceConfig(**common), self.log)
            if stage == "preprocessor":
                settings = PreprocessorConfig(model="m", threads=2)
                ledger = LedgerReader(Ledger(model.setup.encoder))
                core = Preprocessor(process, model.setup, model.sealer, settings, ledger)
            elif stage == "worker":
                engine = self.make_engine(model)
                core = Worker(process, engine, await engine.start(), model.name, QUEUE)
            else:
                core = Parser(process, Shard(model.vocabulary, model.sealer), model.name)
        service = Service(stage, process, core, machine, engine)
        if stage == "worker":
            service.watching.append(self._note_parser)
        await process.connect()
        await (core.gateway if stage == "frontend" else core).start()
        if stage == "worker":
            controls = EngineControls(
                process, engine, "local", self.weights_dir, core.follow_engine
            )
            await controls.start(model.name)
        process.serve(service.reported)
        service.running = asyncio.create_task(process.run())
        self.services.append(service)
        return service

    def make_engine(self, model: Model) -> Any:
        """The engine of the next worker."""
        salt = 100 * sum(service.stage == "worker" for service in self.services)
        engine = CountingEngine(model, salt, self.plans, self.block_tokens)
        engine.shares_queued = self.shares_queued
        return engine

    def _note_parser(self, subject: str, data: bytes) -> None:
        head, _, parser = subject.rpartition(".")
        if head == f"{subjects.PREFIX}.tok":
            for entry in _decode_tokens(data).entries:
                self._parsers[entry.turn] = parser

    async def start(
        self, workers: int = 1, parsers: int = 1, preprocessors: int = 1, **config: Any
    ) -> "Local":
        for stage, count in zip(INNER_STAGES, (preprocessors, workers, parsers), strict=True):
            for _ in range(count):
                await self.add(stage, **config)
        await self.add("frontend", **config)
        await self.completed()
        return self

    @property
    def complete(self) -> bool:
        """Every process counts every other among the living, and none is still announcing
        itself."""
        there = [s for s in self.services if s.alive and not s.cut]
        return all(
            (heartbeat := one.process.registry.get(other.stage, other.id)) is not None
            and not heartbeat.draining
            for one in there
            for other in there
            if one is not other
        )

    async def completed(self) -> None:
        await eventually(lambda: self.complete)

    def of(self, stage: str) -> list[Service]:
        return [s for s in self.services if s.stage == stage and not s.cut]

    @property
    def frontend(self) -> BusPipeline:
        pipeline = self.of("frontend")[-1].core
        assert isinstance(pipeline, BusPipeline)
        return pipeline

    @property
    def gateway(self) -> BusGateway:
        return self.frontend.gateway

    @property
    def turns(self) -> TurnService:
        return turn_service(self.frontend)

    def turn(
        self,
        plan: Plan | None = None,
        *,
        model: str = "",
        before: str = "",
        **sampling: Any,
    ) -> "Running":
        """Opens a turn in the background. `before`: text before its question."""
        self._turns += 1
        turn_id = f"turn{self._turns}"
        self.plans[turn_id] = plan or Plan()
        conversation = Conversation(
            model=model or self.model.name,
            messages=[Message("user", [Text(f"{before}Say {self._turns}.")])],
            sampling=Sampling(**{"max_tokens": 100_000, **sampling}),
        )
        return Running(self, self.of("frontend")[-1], turn_id, conversation)

    async def begun(self, turn: "Running") -> Service:
        """The worker that has a turn, as soon as its engine does."""
        await eventually(lambda: any(worker.engine.has(turn.id) for worker in self.of("worker")))
        return self.worker_of(turn)

    def worker_of(self, turn: "Running") -> Service:
        """The worker that decodes a turn now."""
        return next(worker for worker in self.of("worker") if worker.engine.has(turn.id))

    def parser_of(self, turn: "Running") -> Service:
        """The parser that receives a turn's tokens now."""
        return next(parser for parser in self.of("parser") if parser.id == self._parsers[turn.id])

    async def idle(self) -> None:
        """Waits until no process has a turn."""

        def busy() -> dict[str, int]:
            return {
                service.id: service.turns
                for service in self.services
                if service.turns and not service.cut
            }

        try:
            await eventually(lambda: not busy())
        except TimeoutError:
            raise AssertionError(f"turns of {busy()}") from None

    async def stop(self) -> None:
        await asyncio.gather(*(service.kill() for service in self.services if service.alive))
        await asyncio.gather(
            *(s.running for s in self.services if s.running is not None), return_exceptions=True
        )


class Running:
    """One turn of a client."""

    def __init__(
        self, local: Local, frontend: Service, turn_id: str, conversation: Conversation
    ) -> None:
        self.local = local
        self.id = turn_id
        self.conversation = conversation
        self.sink = Sink()
        context = None if frontend.machine is None else frontend.machine.context
        self.task = asyncio.create_task(self._open(frontend.core), context=context)

    async def _open(self, pipeline: BusPipeline) -> OpenTurn:
        admitted = await admission(pipeline).admit(self.conversation, anyone())
        return await pipeline.gateway.open(admitted, self.sink, turn_id=self.id)

    async def finished(self) -> Finish | Failed:
        """The turn's end."""
        async with asyncio.timeout(LIMIT_S):
            await self.task
            await self.sink.done.wait()
        assert self.sink.end is not None
        return self.sink.end

    async def whole(self, words: int, *, switches: int = 0) -> Finish:
        """Ends well, with each word once and in its place, written by at most `switches` + 1
        workers in turn."""
        end = await self.finished()
        assert isinstance(end, Finish), end
        model, texts = self.local.model, self.sink.texts
        salts = model.salts(texts[0], 0) + (model.salts(texts[1], 2) if len(texts) > 1 else [])
        assert len(salts) == words + 2, f"{len(salts)} words"
        changes = sum(a != b for a, b in pairwise(salts))
        assert changes <= switches, f"the answer is mixed of several decodings: {salts}"
        return end


def other(local: Local, one: Service) -> Service:
    return next(s for s in local.of(one.stage) if s is not one)


def is_gone(gone: Service, *peers: Service) -> bool:
    """Whether these peers count the process among the dead."""
    return not any(peer.peer(gone) for peer in peers)


def owes_nothing(sender: Service) -> bool:
    """Whether every frame of this process is acknowledged."""
    return not sender.reported.links().unacknowledged


def generate_requests(
    change: Callable[[GenerateRequest], GenerateRequest],
) -> tuple[str, Callable[[bytes], bytes]]:
    """A change of a preprocessor's generate requests, for `Service.changing`."""
    return ".gen.", lambda data: encode_generate(change(decode_generate(data)))

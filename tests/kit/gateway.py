"""A gateway of the frontend, with a fake process: the test plays the other stages."""

import asyncio
from itertools import count
from typing import Any

import pytest

from schemas import subjects
from schemas.control import Cancel, ModelCard
from schemas.conversation import Conversation
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, Failed, Interrupted, Prepared, TurnEvent
from schemas.frames import EventEntry, EventFrame
from schemas.requests import TurnRequest
from schemas.token_ids import pack_ids
from services.frontend.gateway.gateway import BusGateway
from services.frontend.gateway.pipeline import BusPipeline
from services.frontend.http.auth import Caller, anyone
from services.frontend.media.image_reader import PutImage
from services.frontend.peers import BusPeers
from services.frontend.turns.interfaces import Admitted, OpenTurn
from services.runtime.config.frontend import FrontendConfig
from tests.kit.frontend import admission
from tests.kit.process import FakeProcess, announce
from tests.kit.sinks import RecordingSink
from tests.kit.waiting import eventually

ASKED = Conversation("m", [])


class Stage:
    """A gateway with open turns; the test plays its preprocessor and its parser."""

    def __init__(self, config: FrontendConfig | None = None) -> None:
        self.process = FakeProcess(config)
        process: Any = self.process
        self.pipeline = BusPipeline(process, self.process.config, BusPeers(process))
        self.gateway: BusGateway = self.pipeline.gateway
        self.put_image: PutImage | None = None
        self.frames = count(1)

    async def admitted(self, conversation: Conversation, caller: Caller | None = None) -> Admitted:
        caller = caller or anyone()
        return await admission(self.pipeline, self.put_image).admit(conversation, caller)

    async def opened(self, conversation: Conversation, sink: RecordingSink, turn: str) -> OpenTurn:
        admitted = await self.admitted(conversation)
        return await self.gateway.open(admitted, sink, turn_id=turn)

    async def begin(
        self, turn: str, conversation: Conversation = ASKED
    ) -> tuple[RecordingSink, asyncio.Task[OpenTurn]]:
        """Requests a turn; the preprocessor has it."""
        sink, before = RecordingSink(), len(self.process.bus.requests)
        opening = asyncio.create_task(self.opened(conversation, sink, turn))
        await self.request(before + 1)
        return sink, opening

    async def open(self, turn: str) -> RecordingSink:
        """Opens a turn, and starts its first block."""
        sink, opening = await self.begin(turn)
        self.prepare(turn, BlockStart(0, "text"))
        await opening
        return sink

    async def request(self, number: int) -> TurnRequest:
        """Waits for the request with this number, the last one."""
        requests = self.process.bus.requests
        await eventually(lambda: len(requests) >= number)
        assert len(requests) == number
        return requests[-1]

    def send(self, *entries: EventEntry) -> None:
        frame = EventFrame("parser-1", next(self.frames), [*entries])
        self.process.deliver(subjects.events(self.process.id), frame)

    def event(self, turn: str, *events: TurnEvent, attempt: int = 1) -> None:
        self.send(EventEntry(turn, attempt, [*events]))

    def prepare(self, turn: str, *events: TurnEvent, attempt: int = 1, worker: str = "1") -> None:
        prepared = Prepared(
            prompt_tokens=1, max_tokens=9, worker=f"worker-{worker}", parser="parser-1"
        )
        self.event(turn, prepared, *events, attempt=attempt)

    def refuse(
        self,
        turn: str,
        *,
        attempt: int = 1,
        kind: ErrorKind = ErrorKind.UNAVAILABLE,
        code: str | None = None,
    ) -> None:
        """The preprocessor refuses the attempt, by default as it found no worker."""
        refused = Failed(ErrorInfo(kind, "no", code=code))
        frame = EventFrame("preprocessor-1", 0, [EventEntry(turn, attempt, [refused])])
        self.process.deliver(subjects.events(self.process.id), frame)

    def interrupt(self, turn: str, attempt: int = 1) -> None:
        """The turn's worker died after one token."""
        died = ErrorInfo(ErrorKind.ENGINE, "died")
        self.event(turn, Interrupted("worker-1", pack_ids([7]), died), attempt=attempt)

    def serves(
        self, name: str, *features: str, tools: bool = False, draining: bool = False
    ) -> None:
        """All stages of a model with the alias `coder` send a heartbeat."""
        card = ModelCard(name, aliases=["coder"], features=[*features], tools=tools)
        announce(self.process.registry, card, name, draining=draining)

    def cancels(self) -> list[tuple[str, int]]:
        return [(one.turn, one.attempt) for one in self.process.published_of(Cancel)]


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    await stage.gateway.start()
    return stage

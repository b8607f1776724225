"""A worker on a real bus, and a parser shard that keeps what it receives."""

from collections.abc import Sequence
from typing import Any

import msgspec
from typing_extensions import override

from schemas import subjects
from schemas.control import Load
from schemas.conversation import Sampling
from schemas.errors import TurnwireError
from schemas.frames import TokenEntry, TokenFrame
from schemas.requests import GenerateReply, GenerateRequest, PrefillNotice
from schemas.token_ids import pack_ids
from services.runtime.process import Process
from services.worker.engine import Engine, EngineInfo, EngineRequest, Handle, Sink
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.service import Worker
from tests.kit.waiting import LIMIT_S, eventually

VOCABULARY = 100_000
NOTICES = "_INBOX_test.notices"


class HeldEngine(Engine):
    """An engine with turns that get their tokens from the test."""

    def __init__(self) -> None:
        self.turns = OpenTurns("held")
        self.features = frozenset({"min_tokens", "seed", "priority", "logit_bias"})
        self.open_turns: dict[str, EngineTurn] = {}
        self.requests: list[EngineRequest] = []
        self.refuses: TurnwireError | None = None

    @override
    async def start(self) -> EngineInfo:
        block_tokens = 2 if "prefix_cache" in self.features else None
        return EngineInfo("held", "1", 1000, 1, block_tokens, None, [2], self.features, VOCABULARY)

    @override
    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        def released() -> None:
            self.open_turns.pop(request.id, None)

        self.requests.append(request)
        if self.refuses is not None:
            raise self.refuses
        turn = self.turns.open(request.id, sink, released)
        self.open_turns[request.id] = turn
        return turn

    @override
    def load(self) -> Load:
        waiting = max(0, len(self.turns) - 1)
        return Load(running=min(1, len(self.turns)), waiting=waiting, slots=1, queue_limit=9)

    @override
    async def stop(self, grace_s: float) -> None:
        self.turns.stop()


class WorkerTrial:
    """A worker of the model `m`; `entries` are what it sends to the shard."""

    def __init__(self, worker: Process, shard: Process) -> None:
        self.worker = worker
        self.shard = shard
        self.entries: list[TokenEntry] = []

    async def start(self, engine: Engine, info: EngineInfo) -> Worker:
        """Starts the worker's service; the shard already receives."""
        await self.shard.subscribe(
            subjects.tokens(self.shard.id),
            lambda delivery: self.entries.extend(
                msgspec.json.decode(delivery.data, type=TokenFrame).entries
            ),
        )
        await self.shard.bus.flush()
        service = Worker(self.worker, engine, info, "m", 9)
        await service.start()
        await self.worker.bus.flush()
        self.shard.heartbeats.send()
        return service

    def request(self, turn: str, ids: Sequence[int] = (1, 2, 3), **more: Any) -> GenerateRequest:
        """The first attempt of a turn of ten tokens; 2 ends it."""
        fields: dict[str, Any] = {
            "attempt": 1,
            "parser": self.shard.id,
            "frontend": "f",
            "sampling": Sampling(max_tokens=10),
            "stop_ids": [2],
            "context": msgspec.Raw(b"{}"),
            **more,
        }
        return GenerateRequest(turn=turn, model="m", prompt=pack_ids(ids), **fields)

    async def send(self, request: GenerateRequest) -> GenerateReply:
        """Sends a request as a preprocessor does."""
        subject = subjects.generate("m", self.worker.id)
        reply = await self.shard.bus.request(subject, msgspec.json.encode(request), LIMIT_S)
        return msgspec.json.decode(reply, type=GenerateReply)

    def ids(self, turn: str) -> list[int]:
        """The tokens of a turn so far."""
        return [token for entry in self.entries if entry.turn == turn for token in entry.ids]

    def ends(self, turn: str) -> list[TokenEntry]:
        """The entries that end a turn."""
        return [e for e in self.entries if e.turn == turn and e.finish is not None]

    async def end_of(self, turn: str) -> TokenEntry:
        """The entry that ends a turn, when it comes."""
        await eventually(lambda: bool(self.ends(turn)))
        return self.ends(turn)[0]


class HeldTrial(WorkerTrial):
    """A worker with an engine that waits for the test."""

    def __init__(self, worker: Process, shard: Process) -> None:
        super().__init__(worker, shard)
        self.engine: HeldEngine = HeldEngine()
        self.notices: list[PrefillNotice] = []

    async def generate(self, turn: str, timeout_s: float | None, **more: Any) -> GenerateReply:
        """Sends the request of a turn."""
        return await self.send(self.request(turn, timeout_s=timeout_s, **more))

    async def start_held(self) -> None:
        """Starts the worker of an engine with a prefix cache; `notices` are those of prefills."""
        self.engine.features |= {"prefix_cache", "salt"}
        await self.shard.subscribe(
            NOTICES,
            lambda delivery: self.notices.append(
                msgspec.json.decode(delivery.data, type=PrefillNotice)
            ),
        )
        await self.start(self.engine, await self.engine.start())

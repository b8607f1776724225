"""The worker on the bus: deadlines."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import structlog

from schemas import subjects
from schemas.control import Load
from schemas.conversation import Sampling
from schemas.errors import ErrorKind
from schemas.events import FinishReason
from schemas.frames import GenerateReply, GenerateRequest, TokenEntry, TokenFrame, pack_ids
from services.runtime.process import Process
from services.worker.engine import Delta, EngineInfo, EngineRequest, Handle, Sink
from services.worker.engines.support import OpenTurn, OpenTurns
from services.worker.service import Worker
from tests.conftest import MakeProcess, eventually


class HeldEngine:
    """An engine with turns that get their tokens from the test."""

    def __init__(self) -> None:
        self.turns = OpenTurns("held")
        self.open_turns: dict[str, OpenTurn] = {}

    async def start(self) -> EngineInfo:
        return EngineInfo("held", "1", 1000, 1, None, None, [2], frozenset())

    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        def released() -> None:
            self.open_turns.pop(request.id, None)

        turn = self.turns.open(request.id, sink, released)
        self.open_turns[request.id] = turn
        return turn

    def load(self) -> Load:
        return Load(running=min(1, len(self.turns)), waiting=max(0, len(self.turns) - 1), slots=1, queue_limit=9)

    def healthy(self) -> bool:
        return True

    async def stop(self, grace_s: float) -> None:
        self.turns.stop()


class Trial:
    """A worker, and a parser shard that keeps what it receives."""

    def __init__(self, worker: Process, shard: Process, engine: HeldEngine) -> None:
        self.worker = worker
        self.shard = shard
        self.engine = engine
        self.entries: list[TokenEntry] = []

    async def generate(self, turn: str, timeout_s: float | None) -> GenerateReply:
        request = GenerateRequest(
            turn=turn,
            attempt=1,
            model="m",
            prompt=pack_ids([1, 2, 3]),
            parser=self.shard.id,
            frontend="f",
            sampling=Sampling(max_tokens=10),
            stop_ids=[2],
            context=msgspec.Raw(b"{}"),
            timeout_s=timeout_s,
        )
        subject = subjects.generate("m", self.worker.id)
        reply = await self.shard.bus.request(subject, msgspec.json.encode(request), 60.0)
        return msgspec.json.decode(reply, type=GenerateReply)

    async def end_of(self, turn: str) -> TokenEntry:
        await eventually(lambda: any(e.turn == turn and e.finish is not None for e in self.entries), 60.0)
        return next(e for e in self.entries if e.turn == turn and e.finish is not None)


@pytest.fixture
async def trial(make_process: MakeProcess, request: pytest.FixtureRequest) -> AsyncIterator[Trial]:
    name = request.node.name
    shard, process = await make_process("parser", f"{name}-p"), await make_process("worker", f"{name}-w")
    engine = HeldEngine()
    made = Trial(process, shard, engine)
    await shard.subscribe(
        subjects.tokens(shard.id),
        lambda delivery: made.entries.extend(msgspec.json.decode(delivery.data, type=TokenFrame).entries),
    )
    await shard.bus.flush()
    worker = Worker(process, engine, await engine.start(), "m", 9)
    await worker.start()
    await process.bus.flush()
    shard.send_heartbeat()
    yield made
    await engine.stop(1.0)


async def test_work_after_its_deadline_is_refused(trial: Trial) -> None:
    reply = await trial.generate("late", -1.0)
    assert reply.error is not None
    assert (reply.error.kind, reply.error.message) == (ErrorKind.TIMED_OUT, "the request's deadline has passed")
    assert not trial.engine.open_turns
    for turn, timeout_s in (("soon", 600.0), ("none", None)):
        assert (await trial.generate(turn, timeout_s)).error is None
    assert list(trial.engine.open_turns) == ["soon.1", "none.1"]


async def test_a_turn_that_waits_is_dropped_at_its_deadline_and_one_that_decodes_is_not(trial: Trial) -> None:
    assert (await trial.generate("decodes", 0.3)).error is None
    trial.engine.open_turns["decodes.1"].put(Delta([7], cached=0))
    assert (await trial.generate("waits", 0.3)).error is None
    end = await trial.end_of("waits")
    assert end.finish is not None
    assert end.finish.error is not None
    assert end.finish.reason is FinishReason.ERROR
    assert end.finish.error.kind is ErrorKind.TIMED_OUT
    assert end.finish.error.message == "the request's deadline passed before it was decoded"
    assert list(trial.engine.open_turns) == ["decodes.1"]
    trial.engine.open_turns["decodes.1"].put(Delta([8], finish=FinishReason.STOP, stop_id=2))
    last = await trial.end_of("decodes")
    assert last.finish is not None
    assert last.finish.reason is FinishReason.STOP


@pytest.mark.parametrize(("full", "warned"), [(None, False), (1000, False), (8192, True)])
async def test_window_that_the_cache_reduces_is_logged_with_both_figures(
    make_process: MakeProcess, request: pytest.FixtureRequest, full: int | None, warned: bool
) -> None:
    process = await make_process("worker", request.node.name)
    capture = structlog.testing.LogCapture()
    process.log = structlog.wrap_logger(structlog.PrintLogger(), processors=[capture])
    engine = HeldEngine()
    info = msgspec.structs.replace(await engine.start(), full_len=full, kv_tokens=1000)
    await Worker(process, engine, info, "m", 9).start()
    lines = [entry for entry in capture.entries if entry["event"] == "worker.window_reduced"]
    assert [(line["log_level"], line["max_model_len"], line["full_len"]) for line in lines] == (
        [("warning", 1000, 8192)] if warned else []
    )

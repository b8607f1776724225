"""Weights that change while turns are decoded, from the operator's call to the frontend's spans and
the engine's cache."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.typing import FilteringBoundLogger
from typing_extensions import override

from schemas.control import EngineControl
from schemas.conversation import Conversation, Hints, Message, Sampling, Text
from schemas.events import UNKNOWN_WEIGHTS, Finish, spans_between
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineRequest, Sink
from services.worker.engines.open_turns import EngineTurn
from tests.kit.counting import Model
from tests.kit.local import Local, Running
from tests.kit.messages_client import Client
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S
from turnwire_tools.script.engine import ScriptEngine

UPDATES = 100
STREAMS = 16


class Log:
    """A sink that logs the version that the engine has at each step."""

    def __init__(self, engine: "LoggingEngine", request: EngineRequest, sink: Sink) -> None:
        self.request = request
        self.versions: list[int] = []
        self.cached: int | None = None
        self.opened = engine.weights_version
        self.turn = request.id.partition(".")[0]
        self._engine = engine
        self._sink = sink
        self.fail = sink.fail

    def put(self, delta: EngineDelta) -> None:
        count = len(delta.ids) + (delta.stop_id is not None)
        self.versions += [self._engine.weights_version] * count
        if delta.cached is not None:
            self.cached = delta.cached
        self._sink.put(delta)


class LoggingEngine(ScriptEngine):
    """A script engine with a log of its own."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config)
        self.logs: list[Log] = []

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        log = Log(self, request, sink)
        self.logs.append(log)
        return super().open(request, log)


class ScriptLocal(Local):
    """A pipeline with script engines."""

    @override
    def make_engine(self, model: Model) -> Any:
        return LoggingEngine(
            WorkerConfig(
                model=str(model.directory),
                slots=12,
                script_mode="request",
                token_delay_ms=1,
                prefill_tokens_per_s=100_000,
            )
        )

    def say(self, number: int, words: int, text: str, **hints: Any) -> Running:
        """A turn of some words, about a text."""
        script = f"[[say]]Hm.</think>[[fill {words}]][[/say]]"
        conversation = Conversation(
            self.model.name,
            [Message("user", [Text(f"{text} {script}")])],
            sampling=Sampling(max_tokens=4000, return_token_ids=True, logprobs=0),
            hints=Hints(**hints),
        )
        return Running(self, self.of("frontend")[-1], f"turn{number}", conversation)


@pytest.fixture
async def pipeline(
    local_nats: NatsServer,
    counting_model: Model,
    quiet_log: FilteringBoundLogger,
    tmp_path: Path,
) -> AsyncIterator[ScriptLocal]:
    made = ScriptLocal(local_nats, counting_model, quiet_log, dead_after_s=4.0)
    made.weights_dir = str(tmp_path)
    (tmp_path / "new").mkdir()
    yield made
    await made.stop()


def versions_of(turn: Running) -> list[int]:
    """The version of each token, as the frontend has it."""
    ids = range(len(turn.sink.ids))
    return [spans_between(turn.sink.weights, at, at + 1)[0].version for at in ids]


@pytest.mark.slow
async def test_hundred_updates_under_sixteen_streams(pipeline: ScriptLocal) -> None:
    """Every token has the version that the engine logs; no prompt finds blocks that were computed
    for another version."""
    await pipeline.start(workers=2)
    engines: list[Any] = [service.engine for service in pipeline.of("worker")]
    texts = [f"Document {number}. " + "All of these words are equal. " * 60 for number in range(2)]
    turns: list[Running] = []
    updated = asyncio.Event()

    async def stream(number: int) -> None:
        while not updated.is_set():
            turn = pipeline.say(len(turns), 40 + 30 * (number % 5), texts[number % 2])
            turns.append(turn)
            assert isinstance(await turn.finished(), Finish)

    streams = [asyncio.create_task(stream(number)) for number in range(STREAMS)]
    for version in range(1, UPDATES + 1):
        control = EngineControl("weights", source="new", version=version)
        states = await pipeline.frontend.control(pipeline.model.name, control)
        assert [(state.weights_version, state.error) for state in states] == [(version, None)] * 2
        await asyncio.sleep(0.06)
    updated.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*streams)

    logs = [log for engine in engines for log in engine.logs]
    changes = 0
    for turn in turns:
        (log,) = (log for log in logs if log.turn == turn.id and log.versions)
        assert versions_of(turn) == log.versions
        assert log.versions[0] == log.opened, "it has not waited for its prefill during an update"
        assert log.request.cache_salt == (f"weights={log.opened}\n" if log.opened else None)
        changes += len(set(log.versions)) - 1
    assert changes >= UPDATES
    for engine in engines:
        check_cache(engine)


def check_cache(engine: LoggingEngine) -> None:
    """Prompts find blocks only of earlier ones that begin alike and were opened for the same
    version."""
    found = 0
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for log in engine.logs:
        beginning = (log.opened, tuple(log.request.token_ids[:24]))
        if log.cached:
            found += 1
            assert beginning in seen, "blocks of another version"
        seen.add(beginning)
    assert found, "no prompt has found any blocks"


async def test_prompt_that_may_reuse_any_blocks_finds_them(pipeline: ScriptLocal) -> None:
    """Those of prompts that were opened with the hint, too."""
    await pipeline.start()
    (engine,) = (service.engine for service in pipeline.of("worker"))
    text = "All of these words are equal. " * 30
    found: list[bool] = []
    for any_weights in (True, False, True, False):
        turn = pipeline.say(len(found), 4, text, any_weights=any_weights)
        assert isinstance(await turn.finished(), Finish)
        found.append(bool(engine.logs[-1].cached))
        control = EngineControl("weights", source="new", version=len(found))
        await pipeline.frontend.control(pipeline.model.name, control)
    assert found == [False, False, True, False]


@pytest.mark.slow
async def test_turn_of_a_lost_worker_has_the_versions_that_the_client_has_seen(
    pipeline: ScriptLocal,
) -> None:
    await pipeline.start(workers=2)
    name, frontend = pipeline.model.name, pipeline.frontend
    await frontend.control(name, EngineControl("weights", source="new", version=1))
    turn = pipeline.say(0, 400, "Begin.")
    await turn.sink.words_at_least(50)
    await frontend.control(name, EngineControl("weights", source="new", version=2))
    await turn.sink.words_at_least(150)
    (worker,) = (w for w in pipeline.of("worker") if any(log.versions for log in w.engine.logs))
    await worker.kill()
    assert isinstance(await turn.finished(), Finish)
    (first,) = (log for log in worker.engine.logs if log.turn == turn.id)
    (second,) = (log for log in pipeline.of("worker")[0].engine.logs if log.turn == turn.id)
    versions = versions_of(turn)
    lost = versions.count(UNKNOWN_WEIGHTS)
    resumed = second.request.resumed
    assert versions[: resumed - lost] == first.versions[: resumed - lost]
    assert versions[resumed:] == second.versions
    assert set(versions) - {UNKNOWN_WEIGHTS} == {1, 2}


async def test_operator_gets_the_answer_of_every_process(stack: Stack, client: Client) -> None:
    """The workers of this stack have no directory of weights."""
    for action, paused in (("pause", True), ("resume", False)):
        status, answer = await client.post(f"/engines/{action}", {"model": MODEL})
        assert (status, [one["paused"] for one in answer["workers"]]) == (200, [paused] * 2)
    update = {"model": MODEL, "source": "new", "version": 1}
    status, answer = await client.post("/engines/weights", update)
    assert (status, answer["error"]["message"].count("no weights_dir")) == (502, 2)

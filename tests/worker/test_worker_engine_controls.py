"""The worker's answers to an operator who pauses its engine or changes its weights."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.control import EngineControl, EngineState, ModelCard
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import Engine, EngineDelta, EngineDied, UpdatableEngine
from services.worker.engine_controls import EngineControls, allowed_source
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S, eventually
from tests.kit.worker import HeldEngine, WorkerTrial


class HeldWeightsEngine(HeldEngine, UpdatableEngine):
    """An engine that loads weights when the test lets it."""

    weights_version = 0

    def __init__(self) -> None:
        super().__init__()
        self.features |= {"prefix_cache", "salt"}
        self.calls: list[str] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.error: Exception | None = None

    async def pause(self, *, abort: bool) -> None:
        self.calls.append("abort" if abort else "keep")

    async def resume(self, *, only_own: bool = False) -> None:
        self.calls.append("go on" if only_own else "resume")

    async def update_weights(self, source: str, version: int) -> None:
        self.calls.append(Path(source).name)
        await self.may_load.wait()
        if self.error is not None:
            raise self.error
        self.weights_version = version


@dataclass
class Trial:
    """A worker with controls, and the frontend that sends them."""

    bus: WorkerTrial
    engine: Any

    async def control(self, action: Any, **more: Any) -> EngineState:
        """Sends a control; returns the state and the error's message."""
        data = msgspec.json.encode(EngineControl(action, **more))
        subject = subjects.engine("m", self.bus.worker.id)
        reply = await self.bus.shard.bus.request(subject, data, LIMIT_S)
        return msgspec.json.decode(reply, type=EngineState)

    async def refusal(self, action: Any, **more: Any) -> str:
        state = await self.control(action, **more)
        assert state.error is not None
        return state.error.message

    @property
    def card(self) -> ModelCard:
        (heartbeat,) = self.bus.shard.registry.living("worker")
        (card,) = heartbeat.models
        return card


async def started(
    make_process: MakeProcess, name: str, engine: HeldEngine, weights_dir: Path | None
) -> Trial:
    shard = await make_process("parser", f"{name}-p")
    bus = WorkerTrial(await make_process("worker", f"{name}-w"), shard)
    any_engine: Engine = engine
    service = await bus.start(any_engine, await engine.start())
    bus.worker.heartbeats.service = service
    folder = str(weights_dir) if weights_dir else None
    controls = EngineControls(bus.worker, any_engine, "held", folder, service.follow_engine)
    await controls.start("m")
    await bus.worker.bus.flush()
    return Trial(bus, engine)


@pytest.fixture
async def trial(
    make_process: MakeProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Trial]:
    (tmp_path / "v1").mkdir()
    engine = HeldWeightsEngine()
    yield await started(make_process, request.node.name, engine, tmp_path)
    await engine.stop(1.0)


async def test_card_has_the_version_before_the_answer(trial: Trial) -> None:
    assert await trial.control("pause") == EngineState(trial.bus.worker.id, 0, True)
    state = await trial.control("weights", source="v1", version=4)
    assert (state.weights_version, state.paused, state.error) == (4, True, None)
    assert trial.card.weights_version == 4
    assert await trial.control("resume") == EngineState(trial.bus.worker.id, 4)
    assert trial.engine.calls == ["keep", "keep", "v1", "resume"]
    await trial.control("pause", mode="abort")
    assert trial.engine.calls[-1] == "abort"


async def test_controls_are_applied_one_after_the_other(trial: Trial) -> None:
    """The second of two updates with one number is refused."""
    trial.engine.may_load.clear()
    updates = [
        asyncio.create_task(trial.control("weights", source=source, version=1))
        for source in ("v1", "v2")
    ]
    await eventually(lambda: "v1" in trial.engine.calls)
    pause = asyncio.create_task(trial.control("pause"))
    trial.engine.may_load.set()
    first, second = [await update for update in updates]
    assert (first.error, first.weights_version) == (None, 1)
    assert second.error is not None
    assert second.error.message == "version 1 is not greater than 1, which is in use"
    assert (await pause).paused
    assert trial.engine.calls == ["keep", "v1", "go on", "keep"]


async def test_update_that_is_sent_again_is_done_once(trial: Trial) -> None:
    """Also by a worker that could not load it at first."""
    trial.engine.error = EngineFailed("no such file")
    assert "no such file" in await trial.refusal("weights", source="v1", version=2)
    trial.engine.error = None
    for _ in range(2):
        state = await trial.control("weights", source="v1", version=2)
        assert state == EngineState(trial.bus.worker.id, 2)
    assert trial.engine.calls == ["keep", "v1", "go on"] * 2
    trial.engine.weights_version = 3  # by somebody else
    assert "not greater than 3" in await trial.refusal("weights", source="v1", version=2)


async def test_version_of_an_unknown_source_is_loaded_again(trial: Trial) -> None:
    """The server has it since before the worker's start, or somebody else has loaded it."""
    trial.engine.weights_version = 5
    trial.engine.error = EngineFailed("no such file")
    assert "no such file" in await trial.refusal("weights", source="none", version=5)
    trial.engine.error = None
    assert "not greater than 5" in await trial.refusal("weights", source="v1", version=4)
    for version in (5, 6):
        trial.engine.weights_version = version
        trial.engine.calls.clear()
        for _ in range(2):
            state = await trial.control("weights", source="v1", version=version)
            assert state == EngineState(trial.bus.worker.id, version)
        assert trial.engine.calls == ["keep", "v1", "go on"]
        refusal = await trial.refusal("weights", source="v2", version=version)
        assert f"not greater than {version}" in refusal


async def test_engine_that_could_not_be_resumed_is_still_paused(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resume(*, only_own: bool) -> None:
        raise EngineFailed("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(trial.engine, "resume", resume)
        state = await trial.control("weights", source="v1", version=1)
    assert (state.weights_version, state.paused) == (1, True)
    assert state.error is not None
    assert await trial.control("resume") == EngineState(trial.bus.worker.id, 1)


async def test_failed_update_leaves_version_and_pause(trial: Trial) -> None:
    for error in (EngineFailed("half a file"), Invalid("other shapes"), RuntimeError("a defect")):
        trial.engine.error = error
        state = await trial.control("weights", source="v1", version=1)
        assert state.error is not None
        assert str(error) in state.error.message
        assert (state.weights_version, state.paused) == (0, False)
        assert trial.engine.calls[-1] == "go on"
    trial.engine.error = EngineDied("half of the weights")
    state = await trial.control("weights", source="v1", version=1)
    assert state.error is not None
    assert trial.engine.calls[-1] == "v1", "a dead engine does not go on"


async def test_engine_that_cannot_change_its_weights_is_named(
    make_process: MakeProcess, tmp_path: Path
) -> None:
    trial = await started(make_process, "fixed", HeldEngine(), tmp_path)
    for action in ("pause", "resume", "weights"):
        text = "the held engine cannot change its weights"
        assert await trial.refusal(action, source="v1", version=1) == text


async def test_no_source_outside_of_the_directory_is_loaded(trial: Trial) -> None:
    for source in ("", ".", "..", "/etc", "v1/../..", "../v1", "v1\0"):
        assert "weights_dir" in await trial.refusal("weights", source=source, version=1)
    assert trial.engine.calls == []


def test_links_are_followed_before_a_source_is_checked(tmp_path: Path) -> None:
    root = tmp_path / "weights"
    for folder in (root / "v1", tmp_path / "weights-other", tmp_path / "secret"):
        folder.mkdir(parents=True)
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to(root / "v1")
    (root / "circle").symlink_to(root / "circle")
    inside = str((root / "v1").resolve())
    for source in ("v1", "in", str(root / "v1"), "v1/../v1"):
        assert allowed_source(source, str(root)) == inside
    for source in (
        "out",
        "out/more",
        "circle/v1",
        str(tmp_path / "weights-other"),
        "../weights-other",
    ):
        with pytest.raises(Invalid, match="weights_dir"):
            allowed_source(source, str(root))
    with pytest.raises(Invalid, match="no weights_dir"):
        allowed_source("v1", None)


async def test_version_is_a_part_of_the_salt_when_a_turn_is_opened(trial: Trial) -> None:
    async def salts(version: int) -> list[str | None]:
        trial.engine.requests.clear()
        for turn, more in (("a", {}), ("b", {"cache_salt": "s"}), ("c", {"any_weights": True})):
            await trial.bus.send(trial.bus.request(f"{turn}{version}", **more))
        return [request.cache_salt for request in trial.engine.requests]

    assert await salts(0) == [None, "s", None]
    await trial.control("weights", source="v1", version=2)
    assert await salts(2) == ["weights=2\n", "weights=2\ns", None]


async def test_turns_that_have_not_started_are_opened_again(trial: Trial) -> None:
    """They were opened with the salt of the old weights."""
    for turn in ("runs", "waits", "waits-too"):
        await trial.bus.send(trial.bus.request(turn))
    trial.engine.open_turns["runs.1"].put(EngineDelta([7], cached=0))
    await trial.control("weights", source="v1", version=1)
    assert list(trial.engine.open_turns) == ["runs.1", "waits.1.w1", "waits-too.1.w1"]
    salts = [request.cache_salt for request in trial.engine.requests]
    assert salts == [None, None, None, "weights=1\n", "weights=1\n"]

    for id in list(trial.engine.open_turns):
        trial.engine.open_turns[id].put(EngineDelta([8], cached=0, weights=1))
        trial.engine.open_turns[id].put(EngineDelta([], finish=FinishReason.STOP, stop_id=2))
    spans: dict[str, list[tuple[int, int]]] = {}
    for turn in ("runs", "waits", "waits-too"):
        await trial.bus.end_of(turn)
        entries = [entry for entry in trial.bus.entries if entry.turn == turn]
        spans[turn] = [(span.at, span.version) for entry in entries for span in entry.weights]
    assert trial.bus.ids("runs") == [7, 8]
    assert spans == {"runs": [(1, 1)], "waits": [(0, 1)], "waits-too": [(0, 1)]}


async def test_turn_that_cannot_be_opened_again_fails_alone(trial: Trial) -> None:
    for turn in ("runs", "waits"):
        await trial.bus.send(trial.bus.request(turn))
    trial.engine.open_turns["runs.1"].put(EngineDelta([7], cached=0))
    trial.engine.refuses = Invalid("no")
    assert (await trial.control("weights", source="v1", version=1)).error is None
    end = (await trial.bus.end_of("waits")).finish
    assert end is not None
    assert end.error == Invalid("no").info
    assert list(trial.engine.open_turns) == ["runs.1"]


async def test_prompt_of_another_version_is_not_predicted(trial: Trial) -> None:
    async def expected(turn: str, **more: Any) -> int | None:
        reply = await trial.bus.send(trial.bus.request(turn, range(3, 20), **more))
        trial.engine.open_turns[f"{turn}.1"].put(
            EngineDelta([7], cached=0, finish=FinishReason.STOP, stop_id=2)
        )
        await trial.bus.end_of(turn)
        return reply.expected_cached

    assert (await expected("a"), await expected("b")) == (0, 16)
    assert (await expected("c", any_weights=True)) == 16
    await trial.control("weights", source="v1", version=1)
    assert (await expected("d"), await expected("e")) == (0, 16)
    assert (await expected("f", any_weights=True)) == 16


async def test_weights_that_somebody_else_has_loaded_are_followed(trial: Trial) -> None:
    service: Any = trial.bus.worker.heartbeats.service
    await trial.bus.send(trial.bus.request("waits"))
    watch = asyncio.create_task(service.watch())
    trial.engine.weights_version = 9
    await eventually(lambda: service.models[0].weights_version == 9)
    assert list(trial.engine.open_turns) == ["waits.1.w9"]
    watch.cancel()

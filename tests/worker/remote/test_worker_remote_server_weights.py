"""Weights that change in a server: the version of every token, pauses, and what others do there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.control import EngineControl, EngineState
from schemas.errors import EngineFailed, Invalid
from schemas.events import UNKNOWN_WEIGHTS
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineDied
from services.worker.engine_controls import EngineControls
from services.worker.engines.open_turns import OpenTurns
from services.worker.engines.registry import open_engine
from services.worker.engines.remote import server_watch, server_weights
from services.worker.engines.remote.llama.dialect import LlamaDialect
from services.worker.engines.remote.server_pause import ServerPause
from services.worker.engines.remote.server_weights import ServerWeights
from tests.kit.engines import (
    EMPTY_MODEL,
    PROMPT,
    begun,
    cached_of,
    ids_of,
    request,
    rest,
    run,
    update,
    versions_of,
)
from tests.kit.listening import listen
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S, eventually
from tests.worker.fake_server import Event
from tests.worker.fake_sglang_server import fake_sglang_server
from tests.worker.fake_vllm_server import fake_vllm_server

SHORT_S = 0.05
SERVERS: dict[str, Any] = {"vllm-server": fake_vllm_server, "sglang-server": fake_sglang_server}

pytestmark = pytest.mark.usefixtures("fake_vllm")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intervals of the engine, for servers that answer at once."""
    monkeypatch.setattr(server_watch, "PULSE_S", SHORT_S)
    monkeypatch.setattr(server_weights, "LOOK_S", SHORT_S)


class Fleet:
    """Servers with an engine before each, which end with the test."""

    def __init__(self, stack: AsyncExitStack, kind: str, model: Path) -> None:
        (model / "config.json").write_text(EMPTY_MODEL)
        self.kind = kind
        self._stack = stack
        self._model = model
        self.server: Any

    async def start(self, *, config: dict[str, Any] | None = None, **options: Any) -> Any:
        """Returns the engine before a new server."""
        self.server = await self._stack.enter_async_context(SERVERS[self.kind](**options))
        self.server.weights.sources = {f"/weights/{number}": number for number in range(200)}
        return await self.attach(**config or {})

    async def attach(self, **config: Any) -> Any:
        """Returns another engine before the server."""
        asked = WorkerConfig(model=str(self._model), engine_url=self.server.url, **config)
        engine: Any = open_engine(self.kind, asked)
        await engine.start()
        self._stack.push_async_callback(engine.stop, 1.0)
        return engine


@pytest.fixture(params=list(SERVERS))
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stack, request.param, tmp_path)


def decoded_by(ids: list[int], prompt: int = len(PROMPT)) -> list[int]:
    """Which weights of the fake have decoded each token."""
    numbers = {(number * 71) % 491: number for number in range(200)}
    return [numbers[(token - 8 - (prompt + at) * 37) % 491] for at, token in enumerate(ids)]


async def decoded(turns: list[list[EngineDelta]], tokens: int) -> None:
    """Returns when the turns together have as many tokens."""
    await eventually(lambda: sum(len(ids_of(deltas)) for deltas in turns) >= tokens)


async def collected(engine: Any, asked: Any, into: list[EngineDelta]) -> None:
    async for delta in listen(engine, asked):
        into.append(delta)


# -- versions


async def test_every_token_has_the_version_that_decoded_it(fleet: Fleet) -> None:
    """A hundred changes under sixteen streams, of which four decode at once."""
    engine = await fleet.start()
    turns = [list[EngineDelta]() for _ in range(16)]
    tasks = [
        asyncio.create_task(collected(engine, request(f"t{n}", max_tokens=400), deltas))
        for n, deltas in enumerate(turns)
    ]
    for version in range(1, 101):
        await update(engine, f"/weights/{version}", version)
        assert engine.weights_version == version
        await decoded(turns, 50 * version)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks)
    for deltas in turns:
        ids = ids_of(deltas)
        assert len(ids) == 400
        assert versions_of(deltas) == decoded_by(ids)
    assert len({version for deltas in turns for version in versions_of(deltas)}) > 50


async def test_turn_of_one_version_has_no_correction(fleet: Fleet) -> None:
    engine = await fleet.start()
    first = await run(engine, request("a"))
    assert [delta.weights for delta in first if delta.weights is not None] == []
    assert all(delta.spans is None for delta in first)
    await update(engine, "/weights/7", 7)
    second = await run(engine, request("b"))
    assert [delta.weights for delta in second if delta.weights is not None] == [7]
    assert all(delta.spans is None for delta in second)
    assert versions_of(second) == [7] * len(ids_of(second))


async def test_version_of_tokens_that_the_server_does_not_tell_is_unknown(fleet: Fleet) -> None:
    """Those after a change, in a turn that was sent before it."""

    def silent(events: list[Event]) -> list[Event]:
        for event in events:
            for one in [*event.get("choices", ()), event.get("meta_info", {})]:
                one.pop("weight_versions", None)
        return events

    engine = await fleet.start()
    fleet.server.lie = silent
    deltas = list[EngineDelta]()
    turn = asyncio.create_task(collected(engine, request(max_tokens=300), deltas))
    await decoded([deltas], 20)
    await update(engine, "/weights/3", 3)
    await turn
    found = dict.fromkeys(zip(versions_of(deltas), decoded_by(ids_of(deltas)), strict=True))
    assert set(found) <= {(0, 0), (UNKNOWN_WEIGHTS, 0), (UNKNOWN_WEIGHTS, 3)}
    assert (UNKNOWN_WEIGHTS, 3) in found


async def test_spans_that_do_not_cover_the_turn_are_unknown(fleet: Fleet) -> None:
    def lying(events: list[Event]) -> list[Event]:
        for event in events:
            for one in [*event.get("choices", ()), event.get("meta_info", {})]:
                if one.get("weight_versions"):
                    one["weight_versions"] = [{"version": "4", "start": 0, "end": 3}]
        return events

    engine = await fleet.start()
    fleet.server.lie = lying
    deltas = await run(engine, request())
    assert set(versions_of(deltas)) == {UNKNOWN_WEIGHTS}


async def test_what_others_load_is_noticed(fleet: Fleet) -> None:
    engine = await fleet.start()
    deltas = list[EngineDelta]()
    turn = asyncio.create_task(collected(engine, request(max_tokens=300), deltas))
    await decoded([deltas], 20)
    fleet.server.weights.load("/weights/9")
    fleet.server.engine.label = "9"
    await eventually(lambda: engine.weights_version == 9)
    await turn
    assert versions_of(deltas) == decoded_by(ids_of(deltas))
    numbers = set[int]()
    for label in ("step-10", "step-11"):
        fleet.server.engine.label = label
        await eventually(lambda: engine.weights_version not in {*numbers, 9})
        numbers.add(engine.weights_version)
        later = await run(engine, request(label))
        assert set(versions_of(later)) == {UNKNOWN_WEIGHTS}
    assert max(numbers) < UNKNOWN_WEIGHTS, "each is another part of a prompt's salt"


async def test_engine_begins_with_the_version_of_the_server(fleet: Fleet) -> None:
    await fleet.start()
    fleet.server.weights.load("/weights/5")
    fleet.server.engine.label = "5"
    engine = await fleet.attach()
    assert engine.weights_version == 5
    assert set(versions_of(await run(engine, request()))) == {5}


async def test_no_blocks_of_the_old_weights_are_found(fleet: Fleet) -> None:
    engine = await fleet.start()
    await run(engine, request("a"))
    assert cached_of(await run(engine, request("b"))) == 96
    await update(engine, "/weights/1", 1)
    assert cached_of(await run(engine, request("c"))) == 0


# -- pauses


async def test_paused_engine_takes_turns_and_is_not_a_hang(fleet: Fleet) -> None:
    engine = await fleet.start(config={"watchdog_s": 0.3})
    deltas, later = list[EngineDelta](), list[EngineDelta]()
    turn = asyncio.create_task(collected(engine, request(max_tokens=300), deltas))
    await decoded([deltas], 20)
    for _ in range(2):
        await engine.pause(abort=False)
    await asyncio.sleep(SHORT_S)  # what was on its way
    stopped_at = len(deltas)
    waiting = asyncio.create_task(collected(engine, request("later"), later))
    await asyncio.sleep(1.0)
    assert (len(deltas), later) == (stopped_at, [])
    await engine.update_weights("/weights/2", 2)
    await asyncio.sleep(SHORT_S)
    assert (len(deltas), later) == (stopped_at, []), "an update does not resume"
    for _ in range(2):
        await engine.resume()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(turn, waiting)
    assert versions_of(deltas) == decoded_by(ids_of(deltas))
    assert set(versions_of(later)) == {2}
    assert engine.healthy()


async def test_pause_by_somebody_else_is_not_a_hang(fleet: Fleet) -> None:
    engine = await fleet.start(config={"watchdog_s": 0.5})
    stream = await begun(engine, request(max_tokens=500))
    fleet.server.weights.paused = True
    fleet.server.engine.gate.clear()
    await asyncio.sleep(1.5)
    assert engine.healthy()
    fleet.server.weights.paused = False
    fleet.server.engine.gate.set()
    await rest(stream)


async def test_update_leaves_a_server_paused_that_somebody_else_has_paused(
    fleet: Fleet, make_process: MakeProcess
) -> None:
    engine = await fleet.start()
    worker = await make_process("worker", f"{fleet.kind}-w")
    controls = EngineControls(worker, engine, fleet.kind, "/weights", lambda: None)
    await controls.start("m")
    await worker.bus.flush()

    async def control(action: Any, **more: Any) -> EngineState:
        data = msgspec.json.encode(EngineControl(action, **more))
        reply = await worker.bus.request(subjects.engine("m", worker.id), data, LIMIT_S)
        return msgspec.json.decode(reply, type=EngineState)

    stopped = fleet.server.weights
    stopped.paused = True
    fleet.server.engine.gate.clear()
    for version in (1, 2):
        state = await control("weights", source=str(version), version=version)
        assert (state.weights_version, state.paused, state.error) == (version, True, None)
        assert stopped.paused
    waiting = asyncio.create_task(run(engine, request("later")))
    await asyncio.sleep(4 * SHORT_S)
    assert not waiting.done()
    stopped.paused = False  # by whoever has paused it
    fleet.server.engine.gate.set()
    assert set(versions_of(await waiting)) == {2}

    assert not (await control("weights", source="3", version=3)).paused
    assert not stopped.paused
    stopped.paused = True
    assert not (await control("resume")).paused
    assert not stopped.paused, "an operator resumes it, whoever has paused it"


async def test_server_that_is_paused_at_the_start_is_an_error(fleet: Fleet) -> None:
    await fleet.start()
    fleet.server.weights.paused = True
    with pytest.raises(EngineFailed, match="is paused"):
        await fleet.attach()


async def test_restarted_server_is_dead_also_in_a_pause(fleet: Fleet) -> None:
    engine = await fleet.start()
    await engine.pause(abort=False)
    fleet.server.started += 1
    await eventually(lambda: not engine.healthy())
    assert "started again" in engine.death()


# -- what fails


async def test_source_that_the_server_cannot_read(fleet: Fleet) -> None:
    """SGLang has its old weights, and vLLM gets them again."""
    engine = await fleet.start()
    await update(engine, "/weights/1", 1)
    turn = asyncio.create_task(run(engine, request(max_tokens=300)))
    with pytest.raises(EngineFailed, match="/weights/none") as failure:
        await update(engine, "/weights/none", 4)
    assert not isinstance(failure.value, EngineDied)
    for deltas in (await turn, await run(engine, request("b"))):
        assert set(versions_of(deltas)) == {1} == set(decoded_by(ids_of(deltas)))
    assert engine.weights_version == 1


async def test_engine_with_unknown_weights_is_dead(fleet: Fleet) -> None:
    """Those of somebody else cannot be loaded again."""
    engine = await fleet.start()
    fleet.server.engine.label = "9"
    await eventually(lambda: engine.weights_version == 9)
    fleet.server.weights.half_loads = True
    stream = await begun(engine, request(max_tokens=3000))
    with pytest.raises(EngineDied, match="/weights/none"):
        await update(engine, "/weights/none", 10)
    with pytest.raises(EngineDied):
        await rest(stream)
    assert not engine.healthy()


async def test_source_that_does_not_fit_is_never_sent(fleet: Fleet, tmp_path: Path) -> None:
    engine = await fleet.start()
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 8)
    for source, why in ((tmp_path, "cannot be read"), (tmp_path / "none", "no weights")):
        with pytest.raises(Invalid, match=why):
            await update(engine, source, 1)
    assert set(versions_of(await run(engine, request()))) == {0}


async def test_vllm_without_its_routes_says_what_it_needs(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = await Fleet(stack, "vllm-server", tmp_path).start(dev_mode=False)
        for change in (engine.pause(abort=False), update(engine, "/weights/1", 1)):
            with pytest.raises(Invalid, match="VLLM_SERVER_DEV_MODE=1"):
                await change
        assert len(ids_of(await run(engine, request()))) == 16


async def test_llama_server_cannot_be_paused(tmp_path: Path) -> None:
    """The weights of others do not change there either."""
    http: Any = None
    dialect = LlamaDialect(WorkerConfig(model=str(tmp_path)))
    weights = ServerWeights(http, dialect, OpenTurns("llama-server"), ServerPause())
    await weights.begin("model.gguf")
    for change in (weights.pause(abort=False), weights.resume(only_own=False)):
        with pytest.raises(Invalid, match="it needs vLLM or SGLang"):
            await change
    assert weights.version == 0


# -- experts


async def test_experts_are_kept_as_they_come(fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "experts"
    folder.mkdir()
    (folder / "notes.txt").write_bytes(bytes(4_000_000))
    options: dict[str, Any] = {"experts": bytes(range(256)) * 4000}
    if fleet.kind == "sglang-server":
        options["enable_return_routed_experts"] = True
    config = {"routed_experts_dir": str(folder), "routed_experts_mb": 3}
    engine = await fleet.start(config=config, **options)
    names = [(await run(engine, request(f"turn.{n}")))[-1].experts for n in range(4)]
    address = fleet.server.url.removeprefix("http://").replace(":", "-")
    assert names[0].startswith(f"{address}/turn.0.")
    assert (folder / names[-1]).read_bytes() == options["experts"]
    assert files_below(folder) == sorted([*names[1:], "notes.txt"])
    (folder / address / "notes.txt").write_text("not the engine's")

    assert (await run(engine, request("prefill", max_tokens=0)))[-1].experts == ""
    again = await fleet.attach(**config)
    (name,) = [(await run(again, request("turn.4")))[-1].experts]
    others = ["notes.txt", f"{address}/notes.txt"]
    assert files_below(folder) == sorted([*names[2:], name, *others])


def files_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


async def test_experts_that_cannot_be_read_break_no_turn(fleet: Fleet, tmp_path: Path) -> None:
    broken: list[Any] = ["*", 7, None, "AAA"]

    def lying(events: list[Event]) -> list[Event]:
        for event in events:
            for one in [*event.get("choices", ()), event.get("meta_info", {})]:
                if one.get("finish_reason"):
                    one["routed_experts"] = broken[0]
        return events

    engine = await fleet.start(config={"routed_experts_dir": str(tmp_path / "experts")})
    fleet.server.lie = lying
    while broken:
        deltas = await run(engine, request(str(len(broken))))
        assert (len(ids_of(deltas)), deltas[-1].experts) == (16, "")
        broken.pop(0)
    assert files_below(tmp_path / "experts") == []


async def test_experts_are_not_asked_for_without_a_directory(fleet: Fleet) -> None:
    options: dict[str, Any] = (
        {"enable_return_routed_experts": True} if fleet.kind == "sglang-server" else {}
    )
    engine = await fleet.start(experts=b"1234", **options)
    assert (await run(engine, request()))[-1].experts == ""
    assert not any("return_routed_experts" in body for body in fleet.server.requests)

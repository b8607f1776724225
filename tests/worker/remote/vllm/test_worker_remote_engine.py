"""The engine over `vllm serve`: whether the server has the same model, and what its death is."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import EngineFailed, Invalid
from services.worker.engine import EngineDied
from services.worker.engines.remote import server_watch
from services.worker.engines.remote.model_check import compare_names
from services.worker.engines.remote.vllm.dialect import VllmServer
from tests.kit.engines import EMPTY_MODEL, begun, ids_of, request, rest, run
from tests.kit.nats import free_port
from tests.kit.waiting import LIMIT_S
from tests.worker.fake_vllm_server import FakeVllmServer, fake_vllm_server
from tests.worker.remote.vllm.serving import SHORT_S, start, started


async def test_start_waits_for_a_server_that_is_not_up_yet(model: Path) -> None:
    server, port = FakeVllmServer(), free_port()
    server.refusals = [503]  # it loads
    starting = asyncio.create_task(start(f"http://127.0.0.1:{port}", model))
    await asyncio.sleep(3 * SHORT_S)
    assert not starting.done()
    await server.open(port)
    await starting
    assert not server.refusals
    await server.close()


async def test_smaller_vocabulary_is_another_model(model: Path) -> None:
    (model / "config.json").write_text(EMPTY_MODEL.replace("512", "1024"))
    async with fake_vllm_server() as server:
        with pytest.raises(Invalid, match=r"another model .* refuses token 1023 .* of 1024"):
            await start(server.url, model)


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_server_that_refuses_to_encode_is_not_taken_for_one_without_a_tokenizer(
    model: Path, status: int
) -> None:
    async with fake_vllm_server() as server:
        server.tokenizes = status, "not now"
        with pytest.raises(EngineFailed, match=f"status {status}: not now"):
            await start(server.url, model)
        server.tokenizes = 400, "Tokenizer not available when `skip_tokenizer_init=True`"
        await start(server.url, model)


async def test_other_tokenizer_is_another_model(demo_dir: Path) -> None:
    async with fake_vllm_server() as server:
        server.tokenizes = 200, ""
        with pytest.raises(Invalid, match="makes other tokens of a text"):
            await start(server.url, demo_dir)


@pytest.mark.parametrize(
    ("root", "model", "differs"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", True),
        ("nvidia/qwen3-8b-FP8", "Qwen/Qwen3-8B", False),
        ("/models/Qwen3-8B", "Qwen/Qwen3-0.6B", False),
        ("Qwen/Qwen3-8B", "./models/small", False),
    ],
)
def test_names_of_the_hub_that_differ_are_noted(root: str, model: str, differs: bool) -> None:
    assert (compare_names(root, model) is not None) == differs


def hang(server: FakeVllmServer) -> None:
    server.engine.gate.clear()
    server.hangs = True


def start_again(server: FakeVllmServer) -> None:
    server.started += 1.0


def count_from_zero(server: FakeVllmServer) -> None:
    server.steps = 0.0


def lose_engine(server: FakeVllmServer) -> None:
    """The process that decodes has died; the one that answers requests reports it."""
    server.engine.kill()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (hang, "does not answer: no answer in time"),
        (start_again, "was started again"),
        (count_from_zero, "was started again"),
        (lose_engine, "is gone: .*EngineCore"),
        (FakeVllmServer.kill, "does not answer|is gone"),
    ],
)
async def test_dead_server_is_a_dead_engine(
    server: FakeVllmServer,
    engine: VllmServer,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[FakeVllmServer], None],
    reason: str,
) -> None:
    monkeypatch.setattr(server_watch, "PULSE_LIMIT_S", 8 * SHORT_S)
    turns = [await begun(engine, request(f"t{n}", max_tokens=3900)) for n in range(2)]
    fault(server)
    ends = await asyncio.gather(*map(rest, turns), return_exceptions=True)
    assert [type(end) for end in ends] == [EngineDied] * 2
    assert not engine.healthy()
    with pytest.raises(EngineDied, match=reason):
        await run(engine, request())


async def test_turn_of_a_dead_server_is_not_sent_to_it_again(
    server: FakeVllmServer, engine: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the turn waits until the engine knows, because the turn goes on at once."""
    monkeypatch.setattr(server_watch, "PULSE_S", LIMIT_S)
    await asyncio.sleep(2 * SHORT_S)  # the last short pulse
    deltas = await begun(engine, request(max_tokens=3000))
    server.kill()
    with pytest.raises(EngineDied):
        await rest(deltas)
    assert not engine.healthy()


async def test_server_that_sends_tokens_is_alive(
    server: FakeVllmServer, engine: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it gives no other sign of life, as one that drains."""
    monkeypatch.setattr(server_watch, "PULSE_LIMIT_S", 8 * SHORT_S)
    deltas = await begun(engine, request(max_tokens=3900))
    hang(server)
    for _ in range(40):
        server.engine.gate.set()
        await anext(deltas)
        server.engine.gate.clear()
        await asyncio.sleep(SHORT_S / 2)
    assert engine.healthy()
    with pytest.raises(EngineDied, match="does not answer"):
        await rest(deltas)


async def test_slow_prefill_is_not_a_hang_while_the_server_counts_steps(
    server: FakeVllmServer, model: Path
) -> None:
    async with started(server, model, watchdog_s=0.4) as engine:
        server.engine.gate.clear()
        server.steps_per_look = 1.0
        slow = asyncio.create_task(run(engine, request()))
        await asyncio.sleep(1.2)
        assert engine.healthy()
        assert not slow.done()
        server.engine.gate.set()
        assert len(ids_of(await slow)) == 16

        server.engine.gate.clear()
        server.steps_per_look = 0.0
        with pytest.raises(EngineDied, match="no step in"):
            await run(engine, request())

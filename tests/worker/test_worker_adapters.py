"""Turns with LoRA adapters, over fakes of vLLM and of servers: each adapter has its own output,
its own blocks and its own keys."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.errors import EngineFailed, Invalid, NotFound
from schemas.token_ids import pack_ids
from services.runtime.config.stages import WorkerConfig
from services.tokenization.block_keys import adapter_salt, block_keys
from services.worker.engine import Engine
from services.worker.engines.registry import open_engine
from services.worker.engines.zmq_events.translator import ZmqKvTranslator
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.events import BlocksStored
from tests.kit.engines import EMPTY_MODEL, PROMPT, cached_of, ids_of, request, run
from tests.kit.waiting import eventually
from tests.worker.fake_sglang_server import fake_sglang_server
from tests.worker.fake_vllm import BLOCK, stored
from tests.worker.fake_vllm_server import FakeVllmServer, fake_vllm_server

ADAPTERS = ("", "sql", "docs")
PATHS = {"sql": "/adapters/sql", "docs": "/adapters/docs"}


Start = Callable[..., Awaitable[Engine]]


@pytest.fixture
async def start(fake_vllm: Any, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an engine that the test need not stop."""
    (tmp_path / "config.json").write_text(EMPTY_MODEL)
    started: list[Engine] = []

    async def make(name: str, **options: Any) -> Engine:
        engine = open_engine(name, WorkerConfig(model=str(tmp_path), **options))
        started.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in started:
        await engine.stop(5.0)


@pytest.fixture
async def server() -> AsyncIterator[FakeVllmServer]:
    async with fake_vllm_server(adapters=["sql", "docs"]) as server:
        yield server


@pytest.fixture(params=["vllm", "vllm-server", "sglang-server"])
async def engine(
    request: pytest.FixtureRequest, start: Start, server: FakeVllmServer
) -> AsyncIterator[Engine]:
    """Each engine with the same two adapters."""
    if request.param == "vllm":
        yield await start("vllm", engine_args={"lora_modules": PATHS}, max_model_len=4096)
    elif request.param == "vllm-server":
        yield await start("vllm-server", engine_url=server.url)
    else:
        async with fake_sglang_server(adapters=["sql", "docs"]) as other:
            yield await start("sglang-server", engine_url=other.url)


async def outputs(engine: Engine, adapter: str, turns: int = 3) -> list[list[int]]:
    """The outputs of a session of which each prompt continues the last turn; checks that each finds
    all of its own earlier turns in the cache, and nothing else."""
    ids, found = list(PROMPT), list[list[int]]()
    salt = adapter_salt(adapter, None)
    for turn in range(turns):
        asked = request(f"{adapter}-{turn}", ids, adapter=adapter, cache_salt=salt, max_tokens=32)
        deltas = await run(engine, asked)
        assert cached_of(deltas) == (0 if not turn else (len(ids) - 1) // BLOCK * BLOCK)
        found.append(ids_of(deltas))
        ids = [*ids, *found[-1]]
    return found


async def test_sessions_side_by_side_are_those_of_their_adapters(engine: Engine) -> None:
    """The prompts are equal, so that every shared block would be found."""
    assert list(engine.adapters()) == ["sql", "docs"]
    base, sql, docs = await asyncio.gather(*(outputs(engine, name) for name in ADAPTERS))
    assert not any(map(set(base[0]).intersection, (sql[0], docs[0])))
    assert sql[0] != docs[0]
    assert await decoded(engine, "sql") == sql[0]


async def decoded(engine: Engine, adapter: str) -> list[int]:
    return ids_of(await run(engine, request("again", PROMPT, adapter=adapter, max_tokens=32)))


async def test_the_server_gets_the_adapter_as_its_model(
    start: Start, server: FakeVllmServer
) -> None:
    engine = await start("vllm-server", engine_url=server.url)
    server.requests.clear()
    for name in ADAPTERS:
        await run(engine, request(name or "base", adapter=name))
    assert [body["model"] for body in server.requests] == ["served", "sql", "docs"]


async def test_adapters_come_and_go_while_the_server_runs(
    start: Start, server: FakeVllmServer
) -> None:
    engine = await start("vllm-server", engine_url=server.url)
    server.load_adapter("new")
    del server.adapters["sql"]
    with pytest.raises(NotFound, match="sql"):
        await run(engine, request("t", adapter="sql"))
    assert engine.healthy()
    await eventually(lambda: list(engine.adapters()) == ["docs", "new"])


async def test_adapters_that_vllm_cannot_load_end_the_start(start: Start) -> None:
    with pytest.raises(Invalid, match="a path for each name"):
        await start("vllm", engine_args={"lora_modules": ["sql"]})
    with pytest.raises(EngineFailed, match="LoRA is not enabled"):
        await start("vllm", engine_args={"lora_modules": PATHS, "enable_lora": False})


def test_the_keys_of_an_adapter_are_those_of_the_preprocessor() -> None:
    """As vLLM reports blocks: their names and salts in the first block, then the names only."""
    salts = [adapter_salt(name, salt) for name in ADAPTERS for salt in (None, "tenant")]
    translator, index, expected = ZmqKvTranslator(BLOCK), KvBlockIndex(BLOCK, None), set[int]()
    for number, salt in enumerate(salts):
        name = ADAPTERS[number // 2] or None
        blocks = [PROMPT[:BLOCK], PROMPT[BLOCK : 2 * BLOCK]]
        first = stored(10 * number, None, blocks[0], salt, name)
        second = stored(10 * number + 1, 10 * number, blocks[1], None, name)
        batch = msgspec.msgpack.encode([0.0, [first, second], 0])
        for event in translator.translate(number, batch):
            index.apply(event)
        expected.update(block_keys(pack_ids(PROMPT[: 2 * BLOCK]), BLOCK, salt=salt))
    assert len(expected) == 2 * len(salts), "no key is shared"
    assert set(index.keys()) == expected


def test_blocks_of_another_clients_adapter_are_not_taken_for_those_of_the_model() -> None:
    translator = ZmqKvTranslator(BLOCK)
    batch = [0.0, [stored(1, None, PROMPT[:BLOCK], None, "sql")], 0]
    assert translator.translate(0, msgspec.msgpack.encode(batch)) == []
    batch = [0.0, [stored(2, None, PROMPT[:BLOCK], "s", "sql")], 0]
    (event,) = translator.translate(1, msgspec.msgpack.encode(batch))
    assert isinstance(event, BlocksStored)
    assert event.salt == "s"

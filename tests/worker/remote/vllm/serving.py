"""Engines over fake servers of vLLM."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineInfo
from services.worker.engines.remote.vllm.dialect import VllmServer
from tests.kit.waiting import LIMIT_S
from tests.worker.fake_vllm_server import FakeVllmServer

SHORT_S = 0.05


@asynccontextmanager
async def started(server: FakeVllmServer, model: Path, **options: Any) -> AsyncIterator[VllmServer]:
    """An engine over a server."""
    engine = VllmServer(WorkerConfig(model=str(model), engine_url=server.url, **options))
    await engine.start()
    server.requests.clear()
    server.engine.aborted.clear()
    try:
        yield engine
    finally:
        await engine.stop(1.0)


async def start(url: str, model: Path, **options: Any) -> EngineInfo:
    """Starts an engine and stops it. Raises the error of the start."""
    engine = VllmServer(WorkerConfig(model=str(model), engine_url=url, **options))
    async with asyncio.timeout(LIMIT_S):
        info = await engine.start()
        await engine.stop(1.0)
    return info


@asynccontextmanager
async def other_server(**answers: web.Response) -> AsyncIterator[str]:
    """The address of a server that answers GETs by the last part of their path, or with 404."""

    async def answer(asked: web.Request) -> web.Response:
        name = asked.path.rpartition("/")[2]
        return answers.get(name) or web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def check_lacking(info: EngineInfo, lacking: dict[str, str]) -> None:
    """Checks what an engine lacks beside what it lacks over every server."""
    always = {"retention", "kv_events", "vision"}
    found = {name: why for name, why in info.lacking.items() if name not in always}
    assert found.keys() == lacking.keys()
    for name, reason in lacking.items():
        assert reason in found[name]

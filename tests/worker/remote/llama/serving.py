"""An engine over a llama-server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.runtime.config.stages import WorkerConfig
from services.worker.engines.registry import open_engine
from tests.kit.engines import PROMPT
from tests.worker.conformance import Bench
from tests.worker.fake_server import FakeServer

FACE, HAN = [499, 500, 501], [502, 503]
"""The tokens of two characters."""
WORDS = [20, 21, 22]


@asynccontextmanager
async def open_bench(server: FakeServer, model: Path) -> AsyncIterator[Bench]:
    engine: Any = open_engine("llama-server", WorkerConfig(model=str(model), engine_url=server.url))
    try:
        yield Bench(engine, await engine.start(), PROMPT, server.kill, cache_unit=1)
    finally:
        await engine.stop(1.0)

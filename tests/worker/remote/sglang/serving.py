"""Fake servers of SGLang with engines."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from services.runtime.config.stages import WorkerConfig
from services.worker.engines.registry import open_engine
from tests.kit.engines import EMPTY_MODEL
from tests.worker.fake_sglang_server import FakeSglangServer, fake_sglang_server


class Fleet:
    """Servers with an engine before each, which end with the test."""

    def __init__(self, stack: AsyncExitStack, model: Path) -> None:
        self._stack = stack
        self._model = model
        self.server: FakeSglangServer

    async def start(self, *, model: str = EMPTY_MODEL, **options: Any) -> Any:
        """Returns the engine before a new server."""
        (self._model / "config.json").write_text(model)
        self.server = await self._stack.enter_async_context(fake_sglang_server(**options))
        return await self.attach()

    async def attach(self) -> Any:
        """Returns another engine before the server."""
        config = WorkerConfig(model=str(self._model), engine_url=self.server.url)
        engine: Any = open_engine("sglang-server", config)
        engine.info = await engine.start()
        self._stack.push_async_callback(engine.stop, 1.0)
        return engine

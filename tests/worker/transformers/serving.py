"""Transformers engines with a tiny model on the CPU."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineInfo, EngineRequest
from services.worker.engines.transformers.engine import TransformersEngine
from tests.kit import engines
from tests.kit.engines import run


def config(model: Path, **changes: Any) -> WorkerConfig:
    args = {"threads": 1, **changes.pop("engine_args", {})}
    return WorkerConfig(
        model=str(model), **{"slots": 8, "kv_tokens": 8192, **changes}, engine_args=args
    )


@asynccontextmanager
async def started(
    model: Path, **changes: Any
) -> AsyncIterator[tuple[TransformersEngine, EngineInfo]]:
    engine = TransformersEngine(config(model, **changes))
    yield engine, await engine.start()
    await engine.stop(5.0)


async def ids_of(engine: TransformersEngine, asked: EngineRequest) -> list[int]:
    return engines.ids_of(await run(engine, asked))

"""What the tests of tools share. The commands look for a running `turnwire up`, as those of
`tests/cli` do."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from services.runtime.config.stages import WorkerConfig
from tests.cli.conftest import home, own_home
from tests.tools.script_stage import Stage
from turnwire_tools.script.engine import ScriptEngine

__all__ = ["home", "own_home"]


@pytest.fixture
async def stage(demo_dir: Path) -> AsyncIterator[Callable[..., Any]]:
    engines: list[ScriptEngine] = []

    async def make(**config: Any) -> Stage:
        options = {"script_mode": "request", "token_delay_ms": 0.0, **config}
        engine = ScriptEngine(WorkerConfig(model=str(demo_dir), **options))
        engines.append(engine)
        return Stage(
            engine, await engine.start(), Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
        )

    yield make
    for engine in engines:
        await engine.stop(1.0)

"""What the tests of tools share. The commands look for a running `turnwire up`, as those of
`tests/cli` do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from schemas.conversation import Sampling
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineInfo, EngineRequest
from tests.cli.conftest import home, own_home
from tests.kit.listening import listen
from tests.kit.waiting import LIMIT_S
from turnwire_tools.script.engine import ScriptEngine


class Stage:
    """A started script engine and the tokenizer to talk to it."""

    def __init__(self, engine: ScriptEngine, info: EngineInfo, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.info = info
        self.tokenizer = tokenizer
        self.count = 0

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text_of(self, deltas: Iterable[EngineDelta]) -> str:
        ids = [token for delta in deltas for token in delta.ids]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    async def play(self, text: str) -> list[EngineDelta]:
        self.count += 1
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        ids, limits = self.encode(prompt), Sampling(max_tokens=500)
        request = EngineRequest(f"t{self.count}", ids, limits, self.info.eos_ids)
        async with asyncio.timeout(LIMIT_S):
            return [delta async for delta in listen(self.engine, request)]

    async def say(self, text: str) -> str:
        """The text of the output."""
        return self.text_of(await self.play(text))


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

"""Requests to an engine and its answers: for every engine's own tests."""

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Sampling
from services.worker.engine import Engine, EngineDelta, EngineDied, EngineRequest, UpdatableEngine
from tests.kit.listening import listen
from tests.kit.waiting import LIMIT_S

PROMPT = [(11 * i + 3) % 500 + 8 for i in range(100)]
"""Ids of a vocabulary of 512, without its end tokens 5 and 7."""
EMPTY_MODEL = '{"vocab_size": 512, "max_position_embeddings": 4096, "eos_token_id": [5, 7]}'
"""`config.json` for an engine over a fake library, which reads no other file."""


def request(
    turn: str = "t",
    ids: Sequence[int] = PROMPT,
    stop_ids: Iterable[int] = (),
    **fields: Any,
) -> EngineRequest:
    """A request of 16 tokens; `fields` are its own and those of its sampling."""
    own = {name: fields.pop(name) for name in EngineRequest.__struct_fields__ if name in fields}
    sampling = Sampling(**{"max_tokens": 16, **fields})
    return EngineRequest(turn, ids, sampling, list(stop_ids), **own)


async def run(engine: Engine, asked: EngineRequest) -> list[EngineDelta]:
    """All deltas of a turn; raises what it failed with."""
    return await rest(listen(engine, asked))


async def begun(engine: Engine, asked: EngineRequest) -> AsyncGenerator[EngineDelta, None]:
    """A turn that has had its first delta."""
    deltas = listen(engine, asked)
    async with asyncio.timeout(LIMIT_S):
        await anext(deltas)
    return deltas


async def rest(deltas: AsyncIterable[EngineDelta]) -> list[EngineDelta]:
    """What is still to come of a turn."""
    async with asyncio.timeout(LIMIT_S):
        return [delta async for delta in deltas]


async def update(engine: UpdatableEngine, source: str | Path, version: int) -> None:
    """Changes the weights between two steps, as a worker does."""
    await engine.pause(abort=False)
    try:
        await engine.update_weights(str(source), version)
    except EngineDied:
        raise
    except Exception:
        await engine.resume()
        raise
    await engine.resume()


def ids_of(deltas: Iterable[EngineDelta]) -> list[int]:
    """The tokens of a turn."""
    return [token for delta in deltas for token in delta.ids]


def versions_of(deltas: Iterable[EngineDelta]) -> list[int]:
    """The version of the weights that decoded each token of a turn, or of its end."""
    versions: list[int] = []
    current = 0
    for delta in deltas:
        current = current if delta.weights is None else delta.weights
        versions += [current] * len(delta.ids)
        for span in delta.spans or ():
            at = max(len(versions) + span.at, 0)
            versions[at:] = [span.version] * (len(versions) - at)
    return versions


def cached_of(deltas: Iterable[EngineDelta]) -> int | None:
    """How many tokens of its prompt a turn found in the cache."""
    return next((delta.cached for delta in deltas if delta.cached is not None), None)


class Library:
    """A library that takes seconds to import, and is imported where a test first uses it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for its marks while it collects tests
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


torch = Library("torch")
transformers = Library("transformers")
with_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None,
    reason="torch or transformers is not installed",
)
with_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"
)

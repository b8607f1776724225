"""What the tests over `vllm serve` share: an engine over a fake server, with short intervals."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.worker.engines.remote import server_start, server_turn, server_watch
from services.worker.engines.remote.vllm.dialect import VllmServer
from tests.kit.engines import EMPTY_MODEL
from tests.worker.fake_vllm_server import FakeVllmServer, fake_vllm_server
from tests.worker.remote.vllm.serving import SHORT_S, started


@pytest.fixture(autouse=True)
def quick(fake_vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The intervals of the engine, for servers that answer at once."""
    monkeypatch.setattr(server_start, "RETRY_S", SHORT_S)
    monkeypatch.setattr(server_turn, "RETRY_S", SHORT_S)
    monkeypatch.setattr(server_watch, "PULSE_S", SHORT_S)
    monkeypatch.setattr(server_turn, "BUSY_S", 6 * SHORT_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that does not wait for its server."""
    monkeypatch.setattr(server_start, "START_S", SHORT_S)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(EMPTY_MODEL)
    return tmp_path


@pytest.fixture
async def server(model: Path) -> AsyncIterator[FakeVllmServer]:
    async with fake_vllm_server() as server:
        yield server


@pytest.fixture
async def engine(server: FakeVllmServer, model: Path) -> AsyncIterator[VllmServer]:
    async with started(server, model) as engine:
        yield engine

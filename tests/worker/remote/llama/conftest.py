"""What the tests over llama-server share: an engine over a fake server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.worker.conformance import Bench
from tests.worker.fake_llama_server import FakeLlamaServer, fake_llama_server, write_model
from tests.worker.remote.llama.serving import open_bench


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


@pytest.fixture
async def server(model: Path) -> AsyncIterator[FakeLlamaServer]:
    async with fake_llama_server(model) as server:
        yield server


@pytest.fixture
async def bench(server: FakeLlamaServer, model: Path) -> AsyncIterator[Bench]:
    async with open_bench(server, model) as bench:
        yield bench

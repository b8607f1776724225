"""Running stacks for the pipeline tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.cli.demo_model import build_demo_model
from tests.conftest import NatsServer
from tests.pipeline.client import Client
from tests.pipeline.stack import Stack


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_demo_model(tmp_path_factory.mktemp("model") / "turnwire-demo")


@pytest.fixture(scope="session")
def stack(nats: NatsServer, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two of every inner stage and one frontend, for tests that harm nobody."""
    running = Stack(nats, demo_model, tmp_path_factory.mktemp("stack"))
    counts = {"worker": 2, "parser": 2, "preprocessor": 2}
    frontend = {"ping_interval_s": 0.3, "slow_reader_timeout_s": 2, "max_body_bytes": 4 << 20}
    try:
        yield running.start_all(counts, frontend=frontend)
    finally:
        running.stop()


@pytest.fixture
def own_stack(own_nats: NatsServer, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two of every inner stage on a server of their own, for one test that kills some."""
    running = Stack(own_nats, demo_model, tmp_path_factory.mktemp("stack"))
    try:
        yield running.start_all({"worker": 2, "parser": 2, "preprocessor": 2})
    finally:
        running.stop()


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Client]:
    talker = Client(stack.url)
    yield talker
    await talker.http.close()


@pytest.fixture
async def own_client(own_stack: Stack) -> AsyncIterator[Client]:
    talker = Client(own_stack.url)
    yield talker
    await talker.http.close()

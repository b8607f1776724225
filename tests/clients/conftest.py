"""A running Turnwire for real clients, and a client's session observed from both sides."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.wire import Recorder
from tests.kit.bus_turns import BusTurns
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.pipeline.tap import Tap

MODEL = "acme/coder"
WINDOW = 131_072
ROOM = {"ledger_store_mb": 64}
COUNTS = {"worker": 1, "parser": 2, "preprocessor": 2}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder, before the marks are selected."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.clients)


@contextmanager
def running(
    nats_binary: str,
    model: Path,
    factory: pytest.TempPathFactory,
    counts: dict[str, int],
    window: int = WINDOW,
    **frontend: Any,
) -> Iterator[Stack]:
    """A stack with a worker that outputs the texts in a request (`[[say]]…[[/say]]`), or else acts
    as the scripted agent."""
    named = {"served_model_name": MODEL}
    stages: dict[str, dict[str, Any]] = {
        "parser": named | ROOM,
        "preprocessor": named | ROOM,
        "worker": named | {"max_model_len": window, "token_delay_ms": 1},
        "frontend": {"accept_any_model": True, "default_model": MODEL, **frontend},
    }
    server = NatsServer(nats_binary, str(factory.mktemp("nats")))
    server.start()
    stack = Stack(server, model, factory.mktemp("stack"))
    try:
        yield stack.start_all(counts, **stages)
    finally:
        stack.stop()
        server.kill()


@asynccontextmanager
async def observed(stack: Stack) -> AsyncIterator[Session]:
    async with Recorder(stack.url) as wire, BusTurns(stack.nats.url) as bus:
        yield Session(wire, bus, stack)


@pytest.fixture(scope="session")
def stack(
    nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Two parsers and two preprocessors."""
    with running(nats_binary, demo_dir, tmp_path_factory, COUNTS) as started:
        yield started


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
async def session(stack: Stack) -> AsyncIterator[Session]:
    async with observed(stack) as one:
        yield one


@pytest.fixture
def tap(stack: Stack, tmp_path: Path) -> Iterator[Tap]:
    """Records the bus from here on."""
    running = Tap(stack.nats.url, tmp_path)
    yield running
    running.stop()

"""Defines fixtures for several files."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from structlog.typing import FilteringBoundLogger

from services.runtime.config import FrontendConfig
from services.runtime.storage import kv
from tests.frontend.responses.pair import Pair, pairing
from tests.frontend.responses.responses_client import Client
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def patient_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for JetStream, however slow the machine is."""
    monkeypatch.setattr(kv, "TIMEOUT_S", LIMIT_S)


@pytest.fixture
def gateway() -> FakeGateway:
    """Files have their own, whose model says something else."""
    return FakeGateway()


@pytest.fixture
def config() -> FrontendConfig:
    """Files have their own."""
    return FrontendConfig()


@pytest.fixture
async def served(gateway: FakeGateway, config: FrontendConfig) -> AsyncIterator[Served]:
    async with serving(gateway, config) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


@pytest.fixture
def client(served: Served, http: ClientSession) -> Client:
    return Client(http, served)


@pytest.fixture
async def pair(make_process: MakeProcess, quiet_log: FilteringBoundLogger) -> AsyncIterator[Pair]:
    """Two frontends that share their store."""
    async with pairing(make_process, quiet_log) as made:
        yield made

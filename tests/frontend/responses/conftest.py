"""Defines fixtures for several files."""

from collections.abc import AsyncIterator

import pytest

from services.runtime.config.frontend import FrontendConfig
from tests.frontend.responses.responses_client import Client
from tests.kit.frontend import FakeGateway, Served, serving


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
def client(served: Served) -> Client:
    return Client(served)

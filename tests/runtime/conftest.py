"""Buses on the shared server, and what the tests of the bus clean up."""

import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from services.runtime.nats.bus import Bus
from tests.kit.nats import NatsServer
from tests.runtime.bus_clients import connected


@pytest.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats.url) as client:
        yield client.bus


@pytest.fixture
async def other(nats: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats.url) as client:
        yield client.bus


@pytest.fixture
def collected() -> Iterator[None]:
    """nats-py does not await tasks that fail when a connection breaks: they are reported here, not
    in another test."""
    yield
    gc.collect()

"""What the tests of the bus clean up."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collected() -> Iterator[None]:
    """nats-py does not await tasks that fail when a connection breaks: they are reported here, not
    in another test."""
    yield
    gc.collect()

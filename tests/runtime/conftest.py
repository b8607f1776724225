"""What the tests of the bus clean up."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collected() -> Iterator[None]:
    """nats-py leaves failed tasks behind when a connection breaks: they are reported here, not during another test."""
    yield
    gc.collect()

"""Settings and fixtures of the frontend's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.clock import loop_clock
from tests.kit.frontend import Served, serving
from tests.kit.strict_states import strict_states

__all__ = ["loop_clock", "served", "strict_states"]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A running application with a pipeline in memory."""
    async with serving() as served:
        yield served

"""Fixtures of several files."""

from collections.abc import AsyncIterator

import pytest
from structlog.typing import FilteringBoundLogger

from tests.conftest import MakeProcess
from tests.frontend.responses.pair import Pair, pairing


@pytest.fixture
async def pair(make_process: MakeProcess, quiet_log: FilteringBoundLogger) -> AsyncIterator[Pair]:
    """Two frontends that share their store."""
    async with pairing(make_process, quiet_log) as made:
        yield made

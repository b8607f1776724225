"""Defines fixtures for several files."""

from collections.abc import AsyncIterator

import pytest
from structlog.typing import FilteringBoundLogger

from services.runtime.storage import kv
from tests.frontend.responses.pair import Pair, pairing
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def patient_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for JetStream, however slow the machine is."""
    monkeypatch.setattr(kv, "TIMEOUT_S", LIMIT_S)


@pytest.fixture
async def pair(make_process: MakeProcess, quiet_log: FilteringBoundLogger) -> AsyncIterator[Pair]:
    """Two frontends that share their store."""
    async with pairing(make_process, quiet_log) as made:
        yield made

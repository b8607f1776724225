"""What the tests of rollouts share: an application with a pipeline and a store in memory."""

from collections.abc import AsyncIterator

import pytest

from tests.frontend.rollouts.token_turns import TokenGateway
from tests.kit.frontend import Served, serving
from tests.kit.rollouts import MemoryRollouts


@pytest.fixture
def gateway() -> TokenGateway:
    return TokenGateway()


@pytest.fixture
def process() -> MemoryRollouts:
    return MemoryRollouts()


@pytest.fixture
async def served(gateway: TokenGateway, process: MemoryRollouts) -> AsyncIterator[Served]:
    async with serving(gateway, rollouts=process) as served:
        yield served

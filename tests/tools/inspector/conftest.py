"""Fixtures of the inspector's tests."""

import pytest

from tests.tools.inspector.by_hand import Bus
from turnwire_tools.inspector.fold import Fold


@pytest.fixture
def fold() -> Fold:
    return Fold()


@pytest.fixture
def bus(fold: Fold) -> Bus:
    return Bus(fold)

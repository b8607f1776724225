"""Fixtures of the inspector's tests."""

import pytest

from services.cli.inspector.fold import Fold
from tests.cli.inspector.by_hand import Bus


@pytest.fixture
def fold() -> Fold:
    return Fold()


@pytest.fixture
def bus(fold: Fold) -> Bus:
    return Bus(fold)

"""Assertions of the cases show their values."""

import pytest

pytest.register_assert_rewrite(
    "tests.simulation.cases_messages",
    "tests.simulation.cases_streams",
    "tests.simulation.cases_outages",
    "tests.simulation.cases_cluster",
)

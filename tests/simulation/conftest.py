"""Assertions of the cases show their values."""

import pytest

for kind in ("messages", "streams", "outages", "without_jetstream", "cluster"):
    pytest.register_assert_rewrite(f"tests.simulation.cases_{kind}")

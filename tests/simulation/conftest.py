"""Assertions of the cases show their values; one real server for all that leave it as it is."""

from collections.abc import Iterator

import pytest

for kind in ("messages", "streams", "outages", "cluster"):
    pytest.register_assert_rewrite(f"tests.simulation.cases_{kind}")
pytest.register_assert_rewrite("tests.simulation.nats_places")

from tests.simulation.nats_places import RealServers  # noqa: E402


@pytest.fixture(scope="package")
def server(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServers]:
    found = RealServers(nats_binary, tmp_path_factory.mktemp("nats"))
    yield found
    found.stop()

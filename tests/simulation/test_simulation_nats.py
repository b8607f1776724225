"""The model of nats-server behaves as nats-server: each case holds on both."""

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from tests.simulation import (
    cases_cluster,
    cases_messages,
    cases_outages,
    cases_streams,
)
from tests.simulation.nats_places import Case, ModelServers, RealServers


def cases(*modules: ModuleType) -> list[Case]:
    """The cases of modules: coroutine functions that take a place and nothing else."""
    return [
        function
        for module in modules
        for function in vars(module).values()
        if inspect.iscoroutinefunction(function)
        and function.__module__ == module.__name__
        and list(inspect.signature(function).parameters) == ["at"]
    ]


PINGS: dict[Case, float] = {cases_outages.silent_client_is_pinged_and_then_disconnected: 0.5}
"""Intervals of the server's pings: on a loaded machine a client may not answer a short one in
time."""
SHARED = pytest.mark.parametrize(
    "case", cases(cases_messages, cases_streams), ids=lambda case: case.__name__
)
"""They leave the server as it is, for the next one."""
OUTAGES = pytest.mark.parametrize("case", cases(cases_outages), ids=lambda case: case.__name__)
CLUSTER = pytest.mark.parametrize("case", cases(cases_cluster), ids=lambda case: case.__name__)


@SHARED
def test_case_holds_on_nats_server(server: RealServers, case: Case) -> None:
    server.run(case)


@SHARED
def test_case_holds_on_the_model(case: Case) -> None:
    ModelServers().run(case)


@OUTAGES
def test_outage_holds_on_nats_server(nats_binary: str, tmp_path: Path, case: Case) -> None:
    server = RealServers(nats_binary, tmp_path, ping_s=PINGS.get(case, 20.0))
    try:
        server.run(case)
    finally:
        server.stop()


@OUTAGES
@pytest.mark.parametrize("seed", range(2))
def test_outage_holds_on_the_model(case: Case, seed: int) -> None:
    ModelServers(seed=seed, ping_s=PINGS.get(case, 20.0)).run(case)


@CLUSTER
@pytest.mark.slow
def test_case_holds_on_a_real_cluster(nats_binary: str, tmp_path: Path, case: Case) -> None:
    servers = RealServers(nats_binary, tmp_path, 3)
    try:
        servers.run(case)
    finally:
        servers.stop()


@CLUSTER
@pytest.mark.parametrize("seed", range(2))
def test_case_holds_on_the_model_of_a_cluster(case: Case, seed: int) -> None:
    ModelServers(3, seed=seed).run(case)

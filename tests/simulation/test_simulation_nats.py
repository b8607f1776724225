"""The model of nats-server behaves as nats-server: each case holds on both."""

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.every import for_each
from tests.simulation import cases_cluster, cases_messages, cases_outages, cases_streams
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


def name_of(case: Case) -> str:
    return case.__name__


SHARED = cases(cases_messages, cases_streams)
"""They leave the server as it is, for the next one."""
OUTAGES = cases(cases_outages)
CLUSTER = cases_cluster.bucket_with_three_copies_survives_any_one_server


@for_each(SHARED, name=name_of)
def test_case_holds_on_nats_server_and_on_the_model(case: Case, server: RealServers) -> None:
    server.run(case)
    ModelServers().run(case)


@pytest.mark.parametrize("case", OUTAGES, ids=name_of)
def test_outage_holds_on_nats_server(nats_binary: str, tmp_path: Path, case: Case) -> None:
    server = RealServers(nats_binary, tmp_path)
    try:
        server.run(case)
    finally:
        server.stop()


@for_each(OUTAGES, name=name_of)
def test_outage_holds_on_the_model(case: Case) -> None:
    for seed in range(2):
        ModelServers(seed=seed).run(case)


@pytest.mark.slow
def test_cluster_survives_on_nats_server(nats_binary: str, tmp_path: Path) -> None:
    servers = RealServers(nats_binary, tmp_path, 3)
    try:
        servers.run(CLUSTER)
    finally:
        servers.stop()


def test_cluster_survives_on_the_model() -> None:
    for seed in range(2):
        ModelServers(3, seed=seed).run(CLUSTER)

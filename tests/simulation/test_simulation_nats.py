"""The model of nats-server behaves as nats-server: each case holds on both."""

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.simulation import cases_messages
from tests.simulation.nats_places import Case, ModelServers, RealServers


def cases(*modules: ModuleType) -> list[Case]:
    """The cases of a module: its coroutine functions that take a place and nothing else."""
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


SHARED = cases(cases_messages)
"""They leave the server as it is, for the next one."""


@pytest.fixture(scope="module")
def server(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServers]:
    found = RealServers(nats_binary, tmp_path_factory.mktemp("nats"))
    yield found
    found.stop()


@pytest.mark.parametrize("case", SHARED, ids=name_of)
def test_case_holds_on_nats_server(server: RealServers, case: Case) -> None:
    server.run(case)


@pytest.mark.parametrize("case", SHARED, ids=name_of)
def test_case_holds_on_the_model(case: Case) -> None:
    ModelServers().run(case)

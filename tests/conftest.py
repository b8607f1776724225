"""Fixtures of all tests, and the order in which they run."""

import gc
from pathlib import Path

import pytest

# Their assertions say what they compared, as those of tests do.
pytest.register_assert_rewrite("tests.kit", "tests.worker.conformance", "tests.worker.vision")

pytest_plugins = [
    "pytester",  # for the test of the kit
    "tests.kit.every",
    "tests.kit.examples",
    "tests.kit.models",
    "tests.kit.nats",
    "tests.kit.processes",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of running stacks first and those of pipelines in their own event loop in the
    middle.

    Each process of pytest-xdist begins with an equal part of this list, and takes from the end of
    another's when it has done its own. So one process starts the stacks, where each of four would,
    and another one has the tests that mostly wait; the tests that compute go on beside both.
    """
    pipeline = Path(__file__).parent / "pipeline"
    stacks: list[pytest.Item] = []
    loops: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        in_loop = "local" in getattr(item, "fixturenames", ())
        (others if item.path.parent != pipeline else loops if in_loop else stacks).append(item)
    middle = max(len(items) // 2 - len(stacks), 0)
    items[:] = [*stacks, *others[:middle], *loops, *others[middle:]]


def pytest_collection_finish() -> None:
    """Ten thousand tests and the modules they import are no garbage: collections need not look at
    them."""
    gc.freeze()

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


PIPELINE = Path(__file__).parent / "pipeline"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of running stacks first.

    Each process of pytest-xdist begins with an equal part of the list. So one process starts the
    stacks, where each would; when it has done its part, it takes others from the end of the list.
    """

    def needs_no_stack(item: pytest.Item) -> bool:
        return item.path.parent != PIPELINE or "local" in getattr(item, "fixturenames", ())

    items.sort(key=needs_no_stack)


def pytest_collection_finish() -> None:
    """Thousands of tests and the modules they import are no garbage: collections need not look at
    them."""
    gc.freeze()

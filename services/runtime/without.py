"""Imports libraries without a package that they use only if it is installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(package: str) -> Iterator[None]:
    """Within it, importing the package fails, unless it was imported before."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]

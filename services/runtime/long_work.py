"""Lets work that turns out to be long leave the event loop: it stops, and starts again in a thread.
Pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LOOP_VALUES = 20_000
"""Limit of the values of JSON that are examined on the event loop. Each takes about 50 ns."""
_NESTED = frozenset({dict, list})
_ON_LOOP = ContextVar("on_loop", default=False)


class LongWork(Exception):
    """The work would hold the event loop for too long."""


@contextmanager
def on_loop() -> Iterator[None]:
    """A context in which `long_work` raises."""
    token = _ON_LOOP.set(True)
    try:
        yield
    finally:
        _ON_LOOP.reset(token)


def long_work() -> None:
    """To be called before work that takes a millisecond or more. Raises LongWork on the event
    loop."""
    if _ON_LOOP.get():
        raise LongWork


def levels(value: Any) -> Iterator[list[Any]]:
    """Yields the objects and lists of decoded JSON, one level of nesting after the other, without
    recursion. Raises LongWork on the event loop for more values than `LOOP_VALUES`."""
    level = [value] if type(value) in _NESTED else []
    values = 0
    while level:
        values += sum(map(len, level))
        if values > LOOP_VALUES:
            long_work()
        yield level
        # Level by level, so that one comprehension handles all values of a level.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in _NESTED
        ]

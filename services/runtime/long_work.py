"""Lets work that turns out to be long leave the event loop: it stops, and starts again in a
thread."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar, TypeVarTuple

LOOP_VALUES = 20_000
"""Limit of the values of JSON that are examined on the event loop. Each takes about 50 ns."""
A = TypeVarTuple("A")
T = TypeVar("T")
_NESTED = frozenset({dict, list})
_LOOP_END: ContextVar[float | None] = ContextVar("loop_end", default=None)
"""The CPU time of this thread at which work must leave the event loop; None: not on the loop."""


class LongWork(Exception):
    """The work would hold the event loop for too long."""


@contextmanager
def on_loop(seconds: float = math.inf) -> Iterator[None]:
    """A context in which `long_work` raises, and `long_so_far` after `seconds` of CPU time."""
    # The clock is a system call, at which a busy machine often runs another process.
    end = seconds if seconds == math.inf else time.thread_time() + seconds
    token = _LOOP_END.set(end)
    try:
        yield
    finally:
        _LOOP_END.reset(token)


def is_on_loop() -> bool:
    """Whether the caller is in a context of `on_loop`."""
    return _LOOP_END.get() is not None


def long_work() -> None:
    """To be called before work that takes a millisecond or more. Raises LongWork on the event
    loop."""
    if is_on_loop():
        raise LongWork


def long_so_far() -> None:
    """To be called again and again by work of unknown length. Raises LongWork on the event loop
    when its time is over."""
    end = _LOOP_END.get()
    if end is not None and time.thread_time() > end:
        raise LongWork


async def run_in_thread_if(large: bool, work: Callable[[*A], T], *args: *A) -> T:
    """Calls `work`, in a thread if it is `large` or calls `long_work`. Returns its result or raises
    its error."""
    if large:
        return await asyncio.to_thread(work, *args)
    return await run_in_thread_if_long(work, *args)


async def run_in_thread_if_long(work: Callable[[*A], T], *args: *A) -> T:
    """Calls `work`; again, in a thread, if it calls `long_work`. Returns its result or raises its
    error."""
    with suppress(LongWork), on_loop():
        return work(*args)
    return await asyncio.to_thread(work, *args)


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

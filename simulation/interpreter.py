"""Replaces what makes two runs of Python differ: clocks, randomness, process ids, and the standard
error stream.

To be installed before anything of `services` is imported, because some modules import
`perf_counter` by name. Every process has its own wall clock; all other clocks are the virtual time.
Randomness is drawn from the seed.
"""

import os
import random
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from simulation.loop import SimLoop, running_machine

EPOCH = 1_767_225_600.0
"""2026-01-01, the wall clock's time at the start of a simulation."""


class _Clock:
    """The time of the simulation that runs now."""

    loop: SimLoop | None = None

    def monotonic(self) -> float:
        return 1000.0 + (self.loop.now if self.loop is not None else 0.0)

    def monotonic_ns(self) -> int:
        return round(self.monotonic() * 1e9)

    def time(self) -> float:
        machine = running_machine()
        return EPOCH + self.monotonic() + (machine.skew_s if machine is not None else 0.0)

    def time_ns(self) -> int:
        return round(self.time() * 1e9)


class _Errors:
    """Takes what a simulated process writes to its standard error stream."""

    def __init__(self, real: TextIO) -> None:
        self._real = real
        self.listener: Callable[[str, str], None] | None = None

    def write(self, text: str) -> int:
        machine = running_machine()
        if machine is None or self.listener is None:
            return self._real.write(text)
        self.listener(machine.name, text)
        return len(text)

    def flush(self) -> None:
        self._real.flush()

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


CLOCK = _Clock()
ERRORS = _Errors(sys.stderr)


class _Entropy:
    """The source of `os.urandom`."""

    def __init__(self) -> None:
        self.random = random.Random(0)

    def __call__(self, size: int, /) -> bytes:
        return self.random.randbytes(size)


ENTROPY = _Entropy()


def install() -> None:
    """Replaces the clocks and the randomness of this interpreter, for good."""
    if "services.runtime.process" in sys.modules:
        raise RuntimeError("the simulation must be installed before the services are imported")
    time.monotonic = time.perf_counter = CLOCK.monotonic
    time.monotonic_ns = time.perf_counter_ns = CLOCK.monotonic_ns
    time.time, time.time_ns = CLOCK.time, CLOCK.time_ns
    time.thread_time = time.process_time = CLOCK.monotonic  # limits of work in CPU time
    real_pid = os.getpid
    os.getpid = lambda: 1 if running_machine() is not None else real_pid()  # heartbeats have it
    os.urandom = ENTROPY
    random._urandom = ENTROPY  # type: ignore[attr-defined]
    assert secrets.token_bytes(4) == random.Random(0).randbytes(4), "secrets has another source"
    sys.stderr = ERRORS
    sys.unraisablehook = lambda _: None  # destructors of the objects of an ended simulation


def begin(loop: SimLoop, seed: int, on_line: Callable[[str, str], None]) -> None:
    """Starts a simulation. `on_line`: called with the process and the text that it logs."""
    CLOCK.loop = loop
    ENTROPY.random = random.Random(seed)
    random.seed(seed)
    ERRORS.listener = on_line


def end() -> None:
    """Ends a simulation."""
    CLOCK.loop = None
    ERRORS.listener = None

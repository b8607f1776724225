"""Helps commands that send load: their arguments, their console and event loop, the limit of
sockets."""

import asyncio
import resource
import sys
from collections.abc import Callable, Sequence

from rich.console import Console


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments at `--`; what follows is for `turnwire up`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def allow_many_sockets() -> None:
    """Raises this process's limit of open files to the highest that is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def make_console() -> Console:
    """Makes the console, wide enough for the tables without a terminal."""
    return Console(width=None if sys.stdout.isatty() else 180)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop's loops, if uvloop is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

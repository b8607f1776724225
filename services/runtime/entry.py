"""From a command line to a running service, and to an exit status: 0 clean, 1 failure, 2 usage or configuration."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from schemas.errors import TurnwireError
from services.runtime.config_flags import exit_with, from_command_line
from services.runtime.config_sources import ConfigError, shown
from services.runtime.memory import keep_freed_memory

CLEAN, FAILURE, USAGE = 0, 1, 2

C = TypeVar("C", bound=Struct)


def main(
    stage: str, config: type[C], run: Callable[[C], Coroutine[Any, Any, None]], argv: Sequence[str] | None = None
) -> int:
    """Runs one service until it ends; what went wrong is on stderr, in one line where it is no fault of ours.

    Raises:
        SystemExit: with status 2, the configuration is wrong.
    """
    prog = f"turnwire serve {stage}"
    keep_freed_memory()
    loaded = from_command_line(config, prog, sys.argv[1:] if argv is None else argv)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run(loaded.config))
    except ConfigError as error:
        exit_with(prog, error.problems)
    except (TurnwireError, OSError) as error:
        print(f"{prog}: {shown(error)}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return FAILURE
    return CLEAN


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

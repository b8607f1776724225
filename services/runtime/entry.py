"""Runs a service from its command line to its exit status: 0 clean, 1 failure, 2 usage or configuration."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from schemas.errors import TurnwireError
from services.runtime.config import Config
from services.runtime.config.command_line import CLEAN, FAILURE, run_command
from services.runtime.config.loader import Sources, mask_passwords
from services.runtime.observability.memory import keep_freed_memory

C = TypeVar("C", bound=Config)


def main(
    stage: str, config: type[C], run: Callable[[C], Coroutine[Any, Any, None]], argv: Sequence[str] | None = None
) -> int:
    """Runs one service until it ends. Expected errors are one line on stderr each.

    Raises:
        SystemExit: with status 2, the configuration is wrong.
    """
    prog = f"turnwire serve {stage}"

    def serve(sources: Sources) -> int:
        loaded = sources.load(config).config
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(run(loaded))
        except (TurnwireError, OSError) as error:
            print(f"{prog}: {mask_passwords(error)}", file=sys.stderr)
            return FAILURE
        except KeyboardInterrupt:
            return FAILURE
        return CLEAN

    keep_freed_memory()
    serve.__doc__ = config.__doc__
    return run_command(serve, prog, sys.argv[1:] if argv is None else argv, config)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

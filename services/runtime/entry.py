"""Runs a service from its command line to its exit status: 0 clean, 1 failure, 2 usage or configuration."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from schemas.errors import TurnwireError
from services.runtime.config import Config
from services.runtime.config.command_line import CLEAN, FAILURE, run_command
from services.runtime.config.loader import Sources, mask_passwords
from services.runtime.observability.memory import keep_freed_memory

C = TypeVar("C", bound=Config)
RunService: TypeAlias = Callable[[C], Coroutine[Any, Any, None]]


def main(stage: str, config: type[C], load: Callable[[], RunService[C]], argv: Sequence[str] | None = None) -> int:
    """Runs one service until it ends. Expected errors are one line on stderr each.

    Args:
        stage: its name.
        config: its settings.
        load: imports the service. Called when the settings are valid, and with garbage collection off, which would take
            a tenth of the import for nothing.
        argv: flags; None: those of this process.

    Raises:
        SystemExit: with status 2, the configuration is wrong.
    """
    prog = f"turnwire serve {stage}"

    def serve(sources: Sources) -> int:
        loaded = sources.load(config).config
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                try:
                    runner.run(_loaded(load)(loaded))
                except KeyboardInterrupt:
                    # The runner and Python would wait for a thread that loads a model.
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(FAILURE)
        except (TurnwireError, OSError) as error:
            print(f"{prog}: {mask_passwords(error)}", file=sys.stderr)
            return FAILURE
        except KeyboardInterrupt:
            return FAILURE
        return CLEAN

    keep_freed_memory()
    serve.__doc__ = config.__doc__
    return run_command(serve, prog, sys.argv[1:] if argv is None else argv, config)


def _loaded(load: Callable[[], RunService[C]]) -> RunService[C]:
    gc.disable()
    try:
        return load()
    finally:
        gc.enable()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop's loop if it is installed; None: asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

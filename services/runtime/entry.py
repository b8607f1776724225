"""Runs a service from its command line to its exit status: 0 clean, 1 failure, 2 usage or
configuration, 130 interrupted before it served."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any

from schemas.errors import TurnwireError
from services.runtime.config import STAGES, ServiceConfig
from services.runtime.config.command_line import CLEAN, FAILURE, INTERRUPTED, run_command
from services.runtime.config.loader import LoadedConfig, Sources
from services.runtime.config.masking import mask_passwords
from services.runtime.observability.memory import keep_freed_memory


def main(
    stage: str,
    argv: Sequence[str],
    check: Callable[[LoadedConfig[Any]], None] = lambda _loaded: None,
) -> int:
    """Runs the service of a stage until SIGTERM or SIGINT, and drains it. Expected errors are one
    line on stderr each.

    Returns the exit status. `argv`: flags; `check` raises ConfigError for settings that cannot work
    on this machine. Raises SystemExit, with status 2, if the configuration is wrong.
    """
    config = STAGES[stage]
    prog = f"turnwire serve {stage}"

    def serve(sources: Sources) -> int:
        found = sources.load(config)
        check(found)
        loaded = found.config
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                try:
                    runner.run(_load(stage)(loaded))
                except KeyboardInterrupt:
                    # The runner and Python would wait for a thread that loads a model.
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(INTERRUPTED)
        except (TurnwireError, OSError) as error:
            print(f"{prog}: {mask_passwords(error)}", file=sys.stderr)
            return FAILURE
        except KeyboardInterrupt:
            return INTERRUPTED
        return CLEAN

    keep_freed_memory()
    serve.__doc__ = config.__doc__
    return run_command(serve, prog, argv, config)


def _load(stage: str) -> Callable[[ServiceConfig], Coroutine[Any, Any, None]]:
    """Imports a service, which takes most of the start. Garbage collection is off meanwhile: it
    would take a tenth of that for nothing."""
    gc.disable()
    try:
        run: Callable[[ServiceConfig], Coroutine[Any, Any, None]] = import_module(
            f"services.{stage}.service"
        ).run
        return run
    finally:
        gc.enable()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop's loop if it is installed; None: asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

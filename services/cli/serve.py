"""`turnwire serve STAGE`: runs the service of a stage. Exit status: 0 clean, 1 failure, 2 usage or
configuration, 130 interrupted before it served."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from schemas.errors import TurnwireError
from services.cli.check.settings import check_settings
from services.cli.registry import BUS_SETTINGS, COMMON_SETTINGS, Command
from services.runtime.config.command_line import (
    CLEAN,
    FAILURE,
    INTERRUPTED,
    USAGE,
    run_command,
)
from services.runtime.config.loader import ConfigError, Sources
from services.runtime.config.masking import mask_passwords
from services.runtime.config.names import nearest
from services.runtime.config.service import ServiceConfig
from services.runtime.config.tables import STAGES
from services.runtime.observability.memory import keep_freed_memory

RunService: TypeAlias = Callable[[ServiceConfig], Coroutine[Any, Any, None]]


def serve(argv: Sequence[str]) -> int:
    """Runs the stage that the first argument names; the others are its flags. Returns the exit
    status."""
    stage = argv[0] if argv else ""
    if stage in ("-h", "--help"):
        print(
            f"usage: turnwire serve {{{','.join(STAGES)}}} [flags]\n\n"
            "turnwire serve STAGE --help shows the flags."
        )
        return CLEAN
    if stage not in STAGES:
        print(
            f"turnwire serve: the stage is one of {', '.join(STAGES)}{nearest(stage, STAGES)}",
            file=sys.stderr,
        )
        return USAGE
    status = serve_stage(stage, argv[1:])
    if stage == "worker":
        # All that can be stopped is stopped. Python would wait for the threads of an engine that
        # hangs in its shutdown.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


COMMAND = Command(serve, passes_arguments=True)


def serve_stage(stage: str, argv: Sequence[str]) -> int:
    """Runs the service of a stage until SIGTERM or SIGINT, and drains it. Expected errors are one
    line on stderr each.

    Returns the exit status. `argv`: flags. Raises SystemExit, with status 2, if the configuration
    is wrong or cannot work on this machine.
    """
    config = STAGES[stage]
    prog = f"turnwire serve {stage}"

    def run(sources: Sources) -> int:
        loaded = sources.load(config)
        check_settings([loaded])
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                try:
                    runner.run(_load(stage)(loaded.config))
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
        except ConfigError:
            raise
        except Exception:
            from services.runtime.observability.telemetry import open_log

            open_log(loaded.config, stage=stage).critical("process.failed", exc_info=True)
            return FAILURE
        return CLEAN

    keep_freed_memory()
    run.__doc__ = config.__doc__
    essential = (*COMMON_SETTINGS, *BUS_SETTINGS, "metrics_port", "log_level", "slots")
    return run_command(run, prog, argv, config, essential=essential)


def _load(stage: str) -> RunService:
    """Imports a service, which takes most of the start. Garbage collection is off meanwhile: it
    would take a tenth of that for nothing."""
    gc.disable()
    try:
        service: RunService = import_module(f"services.{stage}.service").run
        return service
    finally:
        gc.enable()


def new_loop() -> asyncio.AbstractEventLoop:
    """Makes uvloop's event loop if it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()

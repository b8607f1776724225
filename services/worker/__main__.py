"""Runs one worker process, as a pod does: `python -m services.worker`. Flags: `--help`."""

import os
import sys
from collections.abc import Sequence

from services.runtime import entry
from services.runtime.config import WorkerConfig
from services.runtime.entry import RunService


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT, drains, and returns the exit status."""
    return entry.main("worker", WorkerConfig, load, argv)


def load() -> RunService[WorkerConfig]:
    """Imports the service, which takes most of the start (see `entry.main`)."""
    from services.worker.service import run

    return run


if __name__ == "__main__":  # required: TensorRT-LLM's MPI workers import this module again
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything that can be stopped is stopped. Python would wait for the threads of an engine that hangs in its
    # shutdown.
    os._exit(status)

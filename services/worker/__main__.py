"""`python -m services.worker`: one worker process, as a pod runs it. Flags: `--help`."""

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
    """The service, whose import takes most of the start: see `entry.main`."""
    from services.worker.service import run

    return run


if __name__ == "__main__":  # required: TensorRT-LLM's MPI workers import this module again
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is stopped by now that can be. An engine whose shutdown hangs has threads that Python would wait for.
    os._exit(status)

"""`python -m services.worker`: runs one worker process. `--help` shows the flags."""

import os
import sys
from collections.abc import Sequence

from services.runtime import entry


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the process, and returns the exit status."""
    return entry.main("worker", argv)


if __name__ == "__main__":  # required: TensorRT-LLM's MPI workers import this module again
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything that can be stopped is stopped. Python would wait for the threads of an engine that hangs in its
    # shutdown.
    os._exit(status)

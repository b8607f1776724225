"""`python -m services.preprocessor`: one preprocessor process, as a pod runs it. Flags: `--help`."""

import sys
from collections.abc import Sequence

from services.preprocessor.service import run
from services.runtime import entry
from services.runtime.config import PreprocessorConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT, drains, and returns the exit status."""
    return entry.main("preprocessor", PreprocessorConfig, run, argv)


if __name__ == "__main__":
    sys.exit(main())

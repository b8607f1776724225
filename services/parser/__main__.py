"""`python -m services.parser`: one parser process, as a pod runs it. Flags: `--help`."""

import sys
from collections.abc import Sequence

from services.runtime import entry
from services.runtime.config import ParserConfig
from services.runtime.entry import RunService


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT, drains, and returns the exit status."""
    return entry.main("parser", ParserConfig, load, argv)


def load() -> RunService[ParserConfig]:
    """Imports the service, which takes most of the start (see `entry.main`)."""
    from services.parser.service import run

    return run


if __name__ == "__main__":
    sys.exit(main())

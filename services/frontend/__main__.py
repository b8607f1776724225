"""`python -m services.frontend`: one frontend process, as a pod runs it. Flags: `--help`."""

import sys
from collections.abc import Sequence

from services.runtime import entry
from services.runtime.config import FrontendConfig
from services.runtime.entry import RunService


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT, drains, and returns the exit status."""
    return entry.main("frontend", FrontendConfig, load, argv)


def load() -> RunService[FrontendConfig]:
    """The service, whose import takes most of the start: see `entry.main`."""
    from services.frontend.service import run

    return run


if __name__ == "__main__":
    sys.exit(main())

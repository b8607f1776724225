"""`python -m services.frontend`: runs one frontend process. `--help` shows the flags."""

import sys
from collections.abc import Sequence

from services.runtime import entry
from services.runtime.config import FrontendConfig
from services.runtime.entry import RunService


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT, drains, and returns the exit status."""
    return entry.main("frontend", FrontendConfig, load, argv)


def load() -> RunService[FrontendConfig]:
    """Imports and returns the service. The import takes most of the start, so `entry.main` does it late."""
    from services.frontend.service import run

    return run


if __name__ == "__main__":
    sys.exit(main())

"""`python -m services.frontend`: one frontend process, as a pod runs it. Flags: `--help`."""

import sys
from collections.abc import Sequence

from services.frontend.service import run
from services.runtime import entry
from services.runtime.config import FrontendConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT, drains, and returns the exit status."""
    return entry.main("frontend", FrontendConfig, run, argv)


if __name__ == "__main__":
    sys.exit(main())

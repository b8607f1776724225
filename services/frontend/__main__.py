"""`python -m services.frontend`: runs one frontend process. `--help` shows the flags."""

import sys
from collections.abc import Sequence

from services.runtime import entry


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the process, and returns the exit status."""
    return entry.main("frontend", argv)


if __name__ == "__main__":
    sys.exit(main())

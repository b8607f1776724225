"""`turnwire demo-model DIR`: the demo model's directory, made in seconds without a download."""

from collections.abc import Sequence
from pathlib import Path

from services.cli.demo.model import build_demo_model
from services.runtime.config.command_line import run_command


def main(argv: Sequence[str]) -> int:
    """The command `turnwire demo-model`."""
    return run_command(make, "turnwire demo-model", argv)


def make(directory: Path, /) -> int:
    """Makes the demo model's directory, unless it exists, and prints its name.

    Args:
        directory: The directory.
    """
    print(build_demo_model(directory))
    return 0

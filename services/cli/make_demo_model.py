"""`turnwire demo-model DIR`: the demo model's directory, made in seconds without a download."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from services.cli.demo_model import build_demo_model
from services.runtime.config_flags import parse_arguments


def main(argv: Sequence[str]) -> int:
    """Makes the directory, unless it is there already, and prints its name."""
    parser = argparse.ArgumentParser(prog="turnwire demo-model", allow_abbrev=False, description=__doc__)
    parser.add_argument("directory", type=Path)
    print(build_demo_model(parse_arguments(parser, argv).directory))
    return 0

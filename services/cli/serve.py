"""`turnwire serve STAGE`: runs one stage; the same as `python -m services.STAGE`."""

import importlib
import sys
from collections.abc import Sequence

from services.runtime.config import STAGES
from services.runtime.config.loader import nearest


def main(argv: Sequence[str]) -> int:
    """Runs the stage in the first argument with the other arguments as its flags."""
    stage = argv[0] if argv else ""
    if stage in ("-h", "--help"):
        print(f"usage: turnwire serve {{{','.join(STAGES)}}} [flags]")
        return 0
    if stage not in STAGES:
        print(f"turnwire serve: the stage is one of {', '.join(STAGES)}{nearest(stage, STAGES)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"services.{stage}.__main__").main(argv[1:]))

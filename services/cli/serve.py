"""`turnwire serve STAGE`: one stage, as a pod runs it; the same as `python -m services.STAGE`."""

import importlib
import sys
from collections.abc import Sequence

from services.runtime.config import STAGES
from services.runtime.config_sources import nearest


def main(argv: Sequence[str]) -> int:
    """Runs the stage named first with the flags behind it."""
    stage = argv[0] if argv else ""
    if stage in ("-h", "--help"):
        print(f"usage: turnwire serve {{{','.join(STAGES)}}} [flags]")
        return 0
    if stage not in STAGES:
        print(f"turnwire serve: which stage? one of {', '.join(STAGES)}{nearest(stage, STAGES)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"services.{stage}.__main__").main(argv[1:]))

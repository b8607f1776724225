"""Runs a stage as a release with another protocol would: `python -m tests.pipeline.other_protocol
STAGE [flags]`."""

import sys

from schemas import subjects
from services.cli.serve import serve

PREFIX = "tw.v3"

if __name__ == "__main__":
    subjects.PREFIX = PREFIX
    sys.exit(serve(sys.argv[1:]))

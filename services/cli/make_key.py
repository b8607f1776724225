"""`turnwire key NAME`: makes an API key and says it once; only its hash is kept.

Without --file the line for the key file is printed; with it, the line goes to the end of the file, which is made if it
is not there. A running frontend takes it up within a second. What the key may goes behind its name:

    turnwire key ci --file keys.txt concurrency=4 rpm=60 models=small-*,coder expires=2027-01-31
"""

import argparse
import hashlib
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from services.frontend.keys import Limits, parse_keys

PREFIX = "tw-"
"""Tells scanners of leaked secrets, and people, what they see."""


def main(argv: Sequence[str]) -> int:
    """The key on stdout, everything else on stderr. Status 2 for a name or option that no key can have."""
    parser = argparse.ArgumentParser(
        prog="turnwire key",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="holder of the key: letters, digits and . _ @ -")
    parser.add_argument("option", nargs="*", help="what the key may, as name=value")
    parser.add_argument("--file", type=Path, help="key file to put it into")
    arguments = parser.parse_intermixed_args(argv)  # options may stand on both sides of --file
    key = PREFIX + secrets.token_urlsafe(32)
    line = " ".join([f"{arguments.name}:{hashlib.sha256(key.encode()).hexdigest()}", *arguments.option])
    try:
        before = _text(arguments.file)
        parse_keys(before + line, "the key", Limits())
        if arguments.file:
            _append(arguments.file, line)
    except ValueError as error:
        print(f"turnwire key: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"turnwire key: {error}", file=sys.stderr)
        return 1
    print(f"its hash is in {arguments.file}" if arguments.file else f"for the key file:  {line}", file=sys.stderr)
    print("the key, which is not kept anywhere:", file=sys.stderr)
    print(key)
    return 0


def _text(path: Path | None) -> str:
    """The file as it would be read with a line behind it."""
    if path is None or not path.exists():
        return ""
    return path.read_text(encoding="utf-8") + "\n"


def _append(path: Path, line: str) -> None:
    """Adds the line, on a line of its own whatever the file ended with."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
        text = file.read()
        file.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")

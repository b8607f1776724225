"""`turnwire key NAME`: makes an API key and prints it once. Only its hash is stored."""

import hashlib
import os
import re
import secrets
import sys
import time
from pathlib import Path

from services.cli.common import UsageError, read_text
from services.cli.registry import Command
from services.frontend.http.keys import Limits, parse_keys

PREFIX = "tw-"
"""Identifies a key for people and for scanners of leaked secrets."""

NAME = re.compile(r"[A-Za-z0-9._@-]+")


def make(name: str, /, *option: str, file: Path | None = None) -> int:
    """Makes an API key and prints it on stdout, once; only its hash is kept.

    The line for the key file goes to stderr; with --file it is appended to the file, which is
    created if necessary. A running frontend reads it within a second. Options of the key follow its
    name:

        turnwire key ci --file keys.txt concurrency=4 rpm=60 models=small-*,coder expires=2027-01-31

    Args:
        name: Holder of the key: letters, digits and `. _ @ -`
        option: A permission or limit of the key, as name=value.
        file: Key file to append the line to.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"a name has letters, digits and . _ @ - only, not {name!r}")
    key = PREFIX + secrets.token_urlsafe(32)
    line = " ".join([f"{name}:{hashlib.sha256(key.encode()).hexdigest()}", *option])
    before = read_text(file) + "\n" if file and file.exists() else ""
    try:
        expires = parse_keys(before + line, "the key", Limits())[-1].expires
    except ValueError as error:
        raise UsageError(error) from None
    if file:
        _append(file, line)
        print(f"its hash was appended to {file}", file=sys.stderr)
    else:
        print(f"for the key file:  {line}", file=sys.stderr)
    if expires is not None and expires <= time.time():
        print("it has expired already, so servers refuse it", file=sys.stderr)
    print("the key, which is stored nowhere:", file=sys.stderr)
    print(key)
    return 0


COMMAND = Command(make)


def _append(path: Path, line: str) -> None:
    """Appends the line, after a line break if the file does not end with one."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
        text = file.read()
        if text and not text.endswith("\n"):
            file.write("\n")
        file.write(line + "\n")

"""`turnwire key`: makes an API key and prints it once, lists the keys of a file, and removes some.
Only hashes are stored."""

import hashlib
import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from services.cli.common import CommandError, UsageError, read_text
from services.cli.registry import Command
from services.frontend.http.keys import Key, Limits, parse_key, parse_keys

PREFIX = "tw-"
"""Identifies a key for people and for scanners of leaked secrets."""

NAME = re.compile(r"[A-Za-z0-9._@-]+")
SHOWN = 8
"""Digits of a hash that identify a key."""


def key(name: str, /, *option: str, file: Path | None = None) -> int:
    """Makes an API key and prints it on stdout, once; only its hash is kept.

    The line for the key file goes to stderr; with --file it is appended to the file, which is
    created if necessary. A running frontend reads it within a second. Options of the key follow its
    name:

        turnwire key ci --file keys.txt concurrency=4 rpm=60 models=small-*,coder expires=2027-01-31

    Keys of a file are listed, and removed by name or by the digits that the list shows:

        turnwire key list --file keys.txt
        turnwire key remove ci 5f70bf18 --file keys.txt

    Args:
        name: Holder of the key: letters, digits and `. _ @ -`; or `list`, or `remove`.
        option: A permission or limit of the key, as name=value; or what to remove.
        file: Key file to append the line to, to list or to remove from.
    """
    if name == "list":
        return _list(_required(file, name), option)
    if name == "remove":
        return _remove(_required(file, name), option)
    return _make(name, option, file)


COMMAND = Command(key)


def _make(name: str, options: Sequence[str], file: Path | None) -> int:
    if not NAME.fullmatch(name):
        raise UsageError(f"a name has letters, digits and . _ @ - only, not {name!r}")
    secret = PREFIX + secrets.token_urlsafe(32)
    line = " ".join([f"{name}:{hashlib.sha256(secret.encode()).hexdigest()}", *options])
    try:
        expires = parse_key(line, Limits()).expires
    except ValueError as error:
        raise UsageError(error) from None
    if file:
        before = read_text(file) + "\n" if file.exists() else ""
        _parse(before + line, file)
        _append(file, line)
        print(f"its hash was appended to {file}", file=sys.stderr)
    else:
        print(f"for the key file:  {line}", file=sys.stderr)
    if expires is not None and expires <= time.time():
        print("it has expired already, so servers refuse it", file=sys.stderr)
    print("the key, which is stored nowhere:", file=sys.stderr)
    print(secret)
    return 0


def _list(file: Path, options: Sequence[str]) -> int:
    """Prints a line for each key: its name, the beginning of its hash, its options."""
    if options:
        raise UsageError(f"`turnwire key list` takes only --file, not {options[0]!r}")
    entries = _key_lines(read_text(file), file)
    width = max((len(key.name) for _, key in entries), default=0)
    for line, key in entries:
        options = line.split()[1:]
        if key.expires is not None and key.expires <= time.time():
            options = [*options, "(has expired)"]
        print(" ".join([f"{key.name:<{width}}  {_digits(key)} ", *options]).rstrip())
    if not entries:
        print(f"{file} has no keys", file=sys.stderr)
    return 0


def _remove(file: Path, names: Sequence[str]) -> int:
    """Removes the lines of keys; comments and all others stay."""
    if not names:
        raise UsageError("name the keys to remove: `turnwire key remove NAME --file FILE`")
    text = read_text(file)
    entries = _key_lines(text, file)
    removed: list[Key] = []
    for name in names:
        matching = [key for _, key in entries if _is_named(key, name)]
        if not matching:
            known = ", ".join(dict.fromkeys(key.name for _, key in entries)) or "none"
            raise CommandError(f"{file} has no key {name}; it has: {known}")
        removed += matching

    lines = [line for line, key in entries if key in removed]
    kept = [line for line in text.splitlines() if line.strip() not in lines]
    _rewrite(file, "".join(f"{line}\n" for line in kept))
    for _, key in entries:
        if key in removed:
            print(f"removed {key.name}  {_digits(key)}", file=sys.stderr)
    if len(lines) == len(entries):
        print("no key is left, so servers with this file refuse every request", file=sys.stderr)
    return 0


def _required(file: Path | None, name: str) -> Path:
    if file is None:
        raise UsageError(f"`turnwire key {name}` needs the key file: --file FILE")
    return file


def _parse(text: str, file: Path) -> list[Key]:
    """The keys of a file. Raises UsageError."""
    try:
        return parse_keys(text, str(file), Limits())
    except ValueError as error:
        raise UsageError(error) from None


def _key_lines(text: str, file: Path) -> list[tuple[str, Key]]:
    """The keys of a file, each with its line. Raises UsageError."""
    stripped = map(str.strip, text.splitlines())
    lines = [line for line in stripped if line and not line.startswith("#")]
    return list(zip(lines, _parse(text, file), strict=True))


def _digits(key: Key) -> str:
    return key.digest.hex()[:SHOWN]


def _is_named(key: Key, name: str) -> bool:
    """Whether a key has this name, or a hash that begins so."""
    return key.name == name or (len(name) >= SHOWN and key.digest.hex().startswith(name.lower()))


def _append(path: Path, line: str) -> None:
    """Appends the line, after a line break if the file does not end with one."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
        text = file.read()
        if text and not text.endswith("\n"):
            file.write("\n")
        file.write(line + "\n")


def _rewrite(path: Path, text: str) -> None:
    """Replaces the text of a file, which keeps its owner and rights."""
    with path.open("r+", encoding="utf-8") as file:
        file.write(text)
        file.truncate()

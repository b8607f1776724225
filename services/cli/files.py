"""Reads text files, writes files with the mode that they need from the start, and replaces them in one step."""

import os
from pathlib import Path
from typing import IO

from services.cli.errors import UsageError


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a new file. Raises FileExistsError, or another OSError."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)


def read_text(path: Path) -> str:
    """The text of a file. Raises UsageError, which names the file, if it is not UTF-8; OSError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error}") from None


def append_to_file(path: Path, mode: int = 0o600) -> IO[bytes]:
    """Opens a file to append to; a new one gets this mode. Raises OSError."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode), "ab")


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file so that no reader finds a part of it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    create_file(partial, data, mode)
    partial.replace(path)

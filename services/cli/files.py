"""Writes files with the mode that they need from the start, and replaces them in one step."""

import os
from pathlib import Path
from typing import IO


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a new file. Raises FileExistsError, or another OSError."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)


def append_to_file(path: Path, mode: int = 0o600) -> IO[bytes]:
    """Opens a file to append to; a new one gets this mode. Raises OSError."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode), "ab")


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file so that no reader finds a part of it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    create_file(partial, data, mode)
    partial.replace(path)

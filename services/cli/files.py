"""Writes files with the mode that they need from the start, and replaces them in one step."""

import os
from pathlib import Path


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a new file. Raises FileExistsError, or another OSError."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file so that no reader finds a part of it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    create_file(partial, data, mode)
    partial.replace(path)

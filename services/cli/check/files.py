"""Checks files and folders that settings name."""

import os
import shlex
import tempfile
from pathlib import Path
from typing import Any

from services.runtime.config.names import nearest_file

_FILES = ("chat_template", "response_template")


def file_problem(name: str, value: Any) -> str | None:
    """Why the file that a setting names cannot be read; None: it can, or names none."""
    if not name.endswith("_file") and name not in _FILES:
        return None
    path: str = value
    if name == "response_template":
        path = os.path.expanduser(path)
    if not os.path.exists(path):
        hint = nearest_file(path)
        if name == "api_keys_file" and not hint:
            hint = f"; turnwire key NAME --file {shlex.quote(path)} makes it"
        return f'there is no file "{path}"{hint}'
    try:
        Path(path).open("rb").close()
    except OSError as error:
        return f'"{path}" cannot be read: {error.strerror}'
    return None


def place_problem(path: Path, *, is_file: bool) -> str | None:
    """Why a directory, or a file, cannot be written at a path; None if it can."""
    parents = path.parents if is_file else (path, *path.parents)
    folder = path
    try:
        if is_file and path.is_dir():
            return f'"{path}" is a directory'
        folder = next((folder for folder in parents if folder.exists()), Path("/"))
        if not folder.is_dir():
            return f'"{path}": "{folder}" is not a directory'
        tempfile.TemporaryFile(dir=folder).close()  # a right to write is not enough, as in /proc
    except OSError as error:
        return f'"{path}": "{folder}" cannot be written to: {error.strerror}'
    return None

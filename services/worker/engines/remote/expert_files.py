"""Keeps the experts to which the tokens of turns were routed, as files of a directory.

The bytes are those that the server sends, in base64; nobody reads them here.
"""

import asyncio
import re
from binascii import a2b_base64
from pathlib import Path

from msgspec import Raw

from services.runtime.config import MIB

_PIECE = 1 << 20
"""Characters of base64 that are decoded at once; a multiple of 4."""
_NAME = re.compile(r"[\w-][\w.-]*")


class ExpertFiles:
    """A directory in which the oldest files are removed when all of them are too large."""

    def __init__(self, folder: Path, limit_mb: int, suffix: str) -> None:
        """Makes the directory, which no other worker uses. Files with the suffix that it has count,
        too. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._limit = limit_mb * MIB
        self._suffix = suffix
        files = [(file, file.stat()) for file in folder.glob(f"*{suffix}")]
        files.sort(key=lambda entry: entry[1].st_mtime)
        self._sizes = {file.name: state.st_size for file, state in files}
        """Bytes of each file by its name, the oldest first."""
        self._total = sum(self._sizes.values())

    async def write(self, turn: str, text: Raw) -> str:
        """Writes the experts of an attempt at a turn. Returns the name of the directory and the
        file; "" if there are none, or they cannot be written."""
        encoded = memoryview(text).toreadonly()
        if not _NAME.fullmatch(turn) or bytes(encoded[:1]) != b'"':
            return ""
        name = turn + self._suffix
        try:
            size = await asyncio.to_thread(_decode, self._folder / name, encoded[1:-1])
        except (OSError, ValueError):
            return ""
        self._total += size - self._sizes.pop(name, 0)
        self._sizes[name] = size
        self._remove_oldest()
        return f"{self._folder.name}/{name}" if name in self._sizes else ""

    def _remove_oldest(self) -> None:
        while self._total > self._limit:
            name = next(iter(self._sizes))
            self._total -= self._sizes.pop(name)
            (self._folder / name).unlink(missing_ok=True)


def _decode(file: Path, text: memoryview) -> int:
    """Writes the bytes, and returns how many they are. The file is there only with all of them.
    Raises OSError; ValueError for a text in another form than base64."""
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("wb") as out:
            for at in range(0, len(text), _PIECE):
                out.write(a2b_base64(text[at : at + _PIECE], strict_mode=True))
            size = out.tell()
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return size

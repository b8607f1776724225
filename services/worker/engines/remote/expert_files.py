"""Keeps the experts to which the tokens of turns were routed, as files of a directory.

The bytes are those that the server sends, in base64; they are not read here.
"""

import asyncio
import re
from binascii import a2b_base64
from pathlib import Path

from msgspec import Raw

from services.runtime.config.base import MIB

_PIECE = 1 << 20
"""Characters of base64 that are decoded at once; a multiple of 4."""
_NAME = re.compile(r"[\w-][\w.-]*")


class ExpertFiles:
    """A directory in which the oldest files are removed when all of them are too large."""

    def __init__(self, folder: Path, limit_mb: int, suffix: str) -> None:
        """Makes the directory, which no other worker uses; only files with the suffix are removed.
        Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._limit = limit_mb * MIB
        self._suffix = suffix
        self._lock = asyncio.Lock()

    async def write(self, turn: str, text: Raw) -> str:
        """Writes the experts of an attempt at a turn. Returns the name of the directory and the
        file; "" if there are none, or they cannot be written."""
        encoded = memoryview(text).toreadonly()
        if not _NAME.fullmatch(turn) or bytes(encoded[:1]) != b'"':
            return ""
        file = self._folder / f"{turn}{self._suffix}"
        try:
            async with self._lock:
                await asyncio.to_thread(self._write, file, encoded[1:-1])
        except (OSError, ValueError):
            return ""
        return f"{self._folder.name}/{file.name}"

    def _write(self, file: Path, text: memoryview) -> None:
        """Raises OSError; ValueError for a text in another form than base64."""
        part = file.with_name(f"{file.name}.part")  # the file is there only with all bytes
        try:
            with part.open("wb") as out:
                for at in range(0, len(text), _PIECE):
                    out.write(a2b_base64(text[at : at + _PIECE], strict_mode=True))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        files = [(path.stat(), path) for path in self._folder.glob(f"*{self._suffix}")]
        total = 0
        for state, path in sorted(files, key=lambda file: file[0].st_mtime_ns, reverse=True):
            total += state.st_size
            if total > self._limit:
                path.unlink()

"""Caches the report of the tokenizer process for a model directory on disk, so that the next start
needs no process.

A report is found by the content of every file of the directory but the weights, and by the code
that made it: another file, release of transformers or of this package never finds an old one. After
an error of the disk there is none.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from services import __version__

KEPT = 8
"""Reports on disk; the least recently used are removed. Each is about as large as the model's
tokenizer.json."""
MAX_BYTES = 128 << 20
"""Limit of all hashed files of a directory, at about a gigabyte a second; a larger directory has no
entry."""
_WEIGHTS = frozenset((".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors"))
_FOLDERS = (".", "additional_chat_templates")
"""Folders from which transformers reads the files of a tokenizer."""


class CacheEntry:
    """The file of one report."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, model: str, code: bytes, env: Mapping[str, str]) -> "CacheEntry | None":
        """The entry of a model directory; None for a hub id, since its files may change at the hub.
        `code`: the source of the program that makes the report."""
        folder = Path(model).expanduser()
        if not folder.is_dir():
            return None
        hasher = hashlib.blake2b(digest_size=16)
        try:
            _add(hasher, __version__.encode())
            for package in ("tokenizers", "transformers"):
                _add(hasher, version(package).encode())
            _add(hasher, code)
            for name, content in _files(folder):
                _add(hasher, name.encode())
                _add(hasher, content)
            base = env.get("XDG_CACHE_HOME") or ""
            caches = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
        except (OSError, RuntimeError, ImportError):  # no home; no such package
            return None
        return cls(caches / "turnwire" / "tokenizers" / f"{hasher.hexdigest()}.json")

    def read(self) -> bytes | None:
        """The report, if there is one."""
        try:
            report = self._path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):  # a cache that can only be read
            os.utime(self._path)
        return report

    def write(self, report: bytes) -> None:
        """Writes a report, and removes the least recently used ones. Never raises OSError."""
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_bytes(report)
            new.replace(self._path)
            reports = sorted(self._path.parent.iterdir(), key=_last_use, reverse=True)
            for path in reports[KEPT:]:
                path.unlink(missing_ok=True)


def _last_use(report: Path) -> int:
    return report.stat().st_mtime_ns


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    left = MAX_BYTES
    for name in _FOLDERS:
        if not (folder / name).is_dir():
            continue
        for path in sorted((folder / name).iterdir()):
            if path.suffix not in _WEIGHTS and path.is_file():
                left -= path.stat().st_size
                if left < 0:
                    raise OSError("too large")
                yield str(path.relative_to(folder)), path.read_bytes()


def _add(hasher: "hashlib.blake2b", record: bytes) -> None:
    hasher.update(len(record).to_bytes(8, "little"))
    hasher.update(record)

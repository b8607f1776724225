"""Reloads files that change while the process runs: API keys, certificates."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from services.runtime.observability.telemetry import FilteringBoundLogger

INTERVAL_S = 1.0


class FileWatch:
    """Calls `reload` when one of the files has changed.

    It polls, because notifications do not work on mounted secrets. A missing or empty file counts
    only at the second poll, because an editor may replace a file in two steps. If a reload raises
    ValueError or OSError, the error is logged, and the next change is another try.
    """

    def __init__(
        self,
        paths: Sequence[str],
        reload: Callable[[], None],
        log: FilteringBoundLogger,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._paths = paths
        self._reload = reload
        self._log = log
        self._interval_s = interval_s
        self._polled = self._stats()
        self._loaded = self._polled

    def check(self) -> None:
        """Polls once."""
        before = self._polled
        self._polled = self._stats()
        if self._polled == self._loaded:
            return
        if not all(map(_has_content, self._polled)) and self._polled != before:
            return
        self._loaded = self._polled
        try:
            self._reload()
        except (ValueError, OSError) as error:
            self._log.error("file.not_reloaded", files=self._paths, error=str(error))
        else:
            self._log.info("file.reloaded", files=self._paths)

    def _stats(self) -> "list[_Stat | None]":
        return [_stat(path) for path in self._paths]

    async def run(self) -> None:
        """Polls until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.check()

    async def context(self, _app: Any) -> AsyncIterator[None]:
        """Polls while an application runs. For `Application.cleanup_ctx`."""
        task = asyncio.create_task(self.run(), name="file_watch")
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Stat(NamedTuple):
    """The facts of a file that differ when it has changed."""

    size: int
    inode: int
    changed_ns: int


def _stat(path: str) -> _Stat | None:
    """Returns the state of a file, None if there is none. A Kubernetes secret is a symbolic link
    that is replaced; `stat` follows it."""
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return _Stat(stat.st_size, stat.st_ino, stat.st_mtime_ns)


def _has_content(stat: _Stat | None) -> bool:
    return stat is not None and stat.size > 0

"""Files that may change while the process runs: keys, certificates."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from structlog.typing import FilteringBoundLogger

INTERVAL_S = 1.0

Look: TypeAlias = tuple[int, int, int]
"""Inode, size and time of change. A Kubernetes secret is a link that comes to point elsewhere; `stat` follows it."""


class FileWatch:
    """Calls `reload` when one of the files has changed.

    Looking once a second costs microseconds and works on every file system, also on mounted secrets, where
    notifications do not. A reload that raises ValueError or OSError is logged, and tried again at the next change.
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
        self._seen = self._look()

    def check(self) -> None:
        """Looks once."""
        now = self._look()
        if now == self._seen:
            return
        self._seen = now
        try:
            self._reload()
        except (ValueError, OSError) as error:
            self._log.error("file.not_reloaded", files=self._paths, error=str(error))
        else:
            self._log.info("file.reloaded", files=self._paths)

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.check()

    async def context(self, _app: Any) -> AsyncIterator[None]:
        """Runs while an application does (`Application.cleanup_ctx`)."""
        task = asyncio.create_task(self.run(), name="file_watch")
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _look(self) -> list[Look | None]:
        return [_stat(Path(path)) for path in self._paths]


def _stat(path: Path) -> Look | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns

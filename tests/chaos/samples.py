"""Samples memory and open files of all processes, and finds those that grow."""

import asyncio
import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

MIB = 1 << 20
MORE_MEMORY = 16 * MIB
"""Bytes by which a process may grow: caches fill, and the heap is not given back page by page."""
MORE_FILES = 16
EVERY_S = 5.0
ENOUGH = 12
"""Processes with fewer samples are not judged."""


class Sampler:
    """Follows the processes of a deployment, by name and process id."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids
        self.samples: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Bytes of memory and number of open files."""

    async def run(self) -> None:
        while True:
            for name, pid in self._pids().items():
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    files = len(os.listdir(f"/proc/{pid}/fd"))
                except OSError:
                    continue  # it has just ended
                sample = (pages * resource.getpagesize(), files)
                self.samples.setdefault((name, pid), []).append(sample)
            await asyncio.sleep(EVERY_S)

    def growing(self) -> list[str]:
        """Returns the processes with memory or open files that do not stay flat: the last third of
        the samples is compared with the middle third. In the first, caches fill."""
        found = []
        for (name, _), samples in self.samples.items():
            if len(samples) < ENOUGH:
                continue
            third = len(samples) // 3
            before, after = samples[third : 2 * third], samples[-third:]
            rss, more = (median(one for one, _ in part) for part in (before, after))
            files, more_files = (median(one for _, one in part) for part in (before, after))
            if more - rss > max(MORE_MEMORY, rss / 10) or more_files - files > MORE_FILES:
                memory = f"{rss / MIB:.0f} → {more / MIB:.0f} MiB"
                found.append(f"{name}: {memory}, {files} → {more_files} files")
        return found

"""Samples memory and open files of all processes, and finds those that grow."""

import asyncio
import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MORE_MEMORY = 16 << 20
"""Bytes by which a process may grow: caches fill, and the heap is not given back page by page."""
MORE_FILES = 16
LONG_S = 60.0
"""Processes that were followed for less are not judged."""


@dataclass(frozen=True)
class Sample:
    """A measurement of one process."""

    at: float
    rss: int
    """Bytes."""
    files: int


class Sampler:
    """Follows the processes of a deployment, by name and process id."""

    def __init__(self, pids: Callable[[], Mapping[str, int]], every_s: float) -> None:
        self._pids = pids
        self._every_s = every_s
        self.samples: dict[tuple[str, int], list[Sample]] = {}

    async def run(self) -> None:
        while True:
            for name, pid in self._pids().items():
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    files = len(os.listdir(f"/proc/{pid}/fd"))
                except OSError:
                    continue  # it has just ended
                sample = Sample(time.monotonic(), pages * resource.getpagesize(), files)
                self.samples.setdefault((name, pid), []).append(sample)
            await asyncio.sleep(self._every_s)

    def growing(self) -> list[str]:
        """Returns the processes with memory or open files that do not stay flat, and how they
        grew."""
        found = []
        for (name, _), samples in self.samples.items():
            if samples[-1].at - samples[0].at >= LONG_S:
                found += [f"{name}: {text}" for text in growth(samples)]
        return found

    def summary(self) -> list[str]:
        """Returns memory and files of each process that lived as long as the sampler, earlier and
        at the end."""
        whole = max(
            (samples[-1].at - samples[0].at for samples in self.samples.values()), default=0.0
        )
        lines = []
        for (name, _), samples in sorted(self.samples.items()):
            if samples[-1].at - samples[0].at > 0.95 * whole:
                (before, files_before), (after, files_after) = _ends(samples)
                lines.append(
                    f"{name}: {before >> 20} → {after >> 20} MiB, {files_before} → {files_after} files"
                )
        return lines


def growth(samples: Sequence[Sample]) -> list[str]:
    """Compares the last third with the middle third: in the first, caches fill."""
    (before, files_before), (after, files_after) = _ends(samples)
    found = []
    if after - before > max(MORE_MEMORY, before // 10):
        found.append(f"memory grew from {before >> 20} to {after >> 20} MiB")
    if files_after - files_before > MORE_FILES:
        found.append(f"open files grew from {files_before} to {files_after}")
    return found


def _ends(samples: Sequence[Sample]) -> tuple[tuple[int, int], tuple[int, int]]:
    third = max(1, len(samples) // 3)
    parts = samples[third : 2 * third] or samples, samples[-third:]
    (a, b) = (
        (int(statistics.median(s.rss for s in part)), int(statistics.median(s.files for s in part)))
        for part in parts
    )
    return a, b

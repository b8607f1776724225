"""Measures the CPU seconds and memory of processes, by process and by stage. Linux only."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

MIB = 1024 * 1024
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STAGE = re.compile(r"^services\.(?:\w+\.)*(\w+)$")


class Memory(Struct, frozen=True):
    """Memory in MiB."""

    rss: float
    """Resident. Shared pages count in each process."""
    peak: float
    """The largest `rss` so far."""
    pss: float = 0.0
    """Resident, with each page divided among the processes that share it. 0: not reported by the
    kernel."""


class Meter:
    """Measures the CPU time of named processes, this client and the whole machine between `start`
    and `stop`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.pids = dict(pids)
        self._before: dict[str, float] = {}
        self._own = 0.0
        self._busy = 0.0

    def start(self) -> None:
        """Starts counting."""
        self._before = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        self._own = time.process_time()
        self._busy = machine_busy_seconds()

    def stop(self) -> "Cost":
        """Returns the use since `start`. Raises ProcessLookupError for a process that has ended."""
        used = {}
        for name, pid in self.pids.items():
            used[name] = cpu_seconds(pid) - self._before[name]
        own = time.process_time() - self._own
        others = machine_busy_seconds() - self._busy - own - sum(used.values())
        rounded = {name: round(seconds, 6) for name, seconds in used.items()}
        return Cost(rounded, round(own, 6), max(0.0, round(others, 2)))


class Cost(Struct, frozen=True):
    """CPU seconds."""

    processes: dict[str, float]
    client: float
    others: float
    """All other processes of the machine, in steps of 10 ms: shows whether a run was disturbed."""


def cpu_seconds(pid: int) -> float:
    """Returns user and system time of a process with all its threads, also ended ones. Raises
    ProcessLookupError."""
    try:
        # The process's own clock (clock_getcpuclockid), in ns.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        fields = _read(pid, "stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory(pid: int) -> Memory:
    """Returns the resident memory now and its peak. Raises ProcessLookupError."""
    status = _read(pid, "status")
    try:
        shared = _read(pid, "smaps_rollup")
    except OSError:
        shared = ""
    return Memory(_mib("VmRSS", status), _mib("VmHWM", status), _mib("Pss", shared))


def machine_busy_seconds() -> float:
    """Returns the CPU time of all processes of the machine."""
    values = [int(value) for value in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / _TICKS_PER_S


def stages(up: int) -> dict[str, int]:
    """All processes of a `turnwire up`, by stage: `frontend`, `parser`, … and `nats`; several:
    `parser-2` and so on.

    Raises ProcessLookupError if there is no such process.
    """
    found: dict[str, int] = {"up": up}
    _read(up, "stat")
    for pid in descendants(up):
        stage = _stage(pid)
        if stage is None:
            continue
        name, number = stage, 1
        while name in found:
            number += 1
            name = f"{stage}-{number}"
        found[name] = pid
    return found


def descendants(pid: int) -> list[int]:
    """Returns children, their children and so on, in the order of their ids."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_read(int(entry.name), "stat").rpartition(")")[2].split()[1])
            except ProcessLookupError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    look = [pid]
    while look:
        children = parents.get(look.pop(), [])
        found += children
        look += children
    return sorted(found)


def _mib(key: str, text: str) -> float:
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return round(int(found[1]) * 1024 / MIB, 1) if found else 0.0


def _stage(pid: int) -> str | None:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    if Path(words[0]).name == "nats-server":
        return "nats"
    if words[2:4] == ["services.cli.main", "serve"]:
        return words[4]
    return next(
        (found[1] for word in words[:4] if (found := _STAGE.match(word))),
        Path(words[0]).name or None,
    )


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process {pid}") from None

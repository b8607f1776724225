"""What processes cost: CPU seconds and memory from Linux itself, by process and by stage."""

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

MIB = 1024 * 1024
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STAGE = re.compile(r"^services\.(?:\w+\.)*(\w+)$")


class Memory(Struct, frozen=True):
    """In MiB."""

    rss: float
    """Resident; pages that processes share count in each of them."""
    peak: float
    """The largest `rss` so far."""
    pss: float = 0.0
    """Resident; each page is divided among the processes that share it. 0: not reported by the kernel."""


class Meter:
    """CPU time that named processes use between `start` and `stop`, this client and all others of the machine too."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.pids = dict(pids)
        self._before: dict[str, float] = {}
        self._own = 0.0
        self._busy = 0.0

    def start(self) -> None:
        """Begins to count."""
        self._before = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        self._own = time.process_time()
        self._busy = machine_busy_seconds()

    def stop(self) -> "Cost":
        """What was used since `start`. Raises ProcessLookupError, naming it, for a process that has ended."""
        used = {}
        for name, pid in self.pids.items():
            try:
                used[name] = cpu_seconds(pid) - self._before[name]
            except ProcessLookupError:
                raise ProcessLookupError(f"{name} (pid {pid}) ended during the measurement") from None
        own = time.process_time() - self._own
        others = machine_busy_seconds() - self._busy - own - sum(used.values())
        rounded = {name: round(seconds, 6) for name, seconds in used.items()}
        return Cost(rounded, round(own, 6), max(0.0, round(others, 2)))


class Cost(Struct, frozen=True):
    """CPU seconds."""

    processes: dict[str, float]
    client: float
    others: float
    """All that the machine did besides: whether a run was disturbed. In steps of 10 ms."""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads, ended ones too. Raises ProcessLookupError."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the process's own clock (clock_getcpuclockid), ns resolution
    except OSError:
        fields = _read(pid, "stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory(pid: int) -> Memory:
    """Resident memory now and at most. Raises ProcessLookupError."""
    status = _read(pid, "status")
    try:
        shared = _read(pid, "smaps_rollup")
    except OSError:
        shared = ""
    return Memory(_mib("VmRSS", status), _mib("VmHWM", status), _mib("Pss", shared))


def machine_busy_seconds() -> float:
    """CPU time that all processes of the machine have used."""
    values = [int(value) for value in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / _TICKS_PER_S


def stages(up: int) -> dict[str, int]:
    """All processes of a `turnwire up`, by stage: `frontend`, `parser`, … and `nats`; several: `parser-2` and so on.

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
    """Children, their children and so on, in the order of their ids."""
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


def parse_pids(pairs: Iterable[str]) -> dict[str, int]:
    """`name=pid` pairs. Raises ValueError, naming the pair, where that is not what it is."""
    found = {}
    for pair in pairs:
        name, _, pid = pair.partition("=")
        if not name or not pid.isdigit():
            raise ValueError(f"not name=pid: {pair}")
        found[name] = int(pid)
    return found


def of_stage(process: str) -> str:
    """The stage of a process's name: `parser` of `parser-2`."""
    return re.sub(r"-\d+$", "", process)


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
    return next((found[1] for word in words[:4] if (found := _STAGE.match(word))), Path(words[0]).name or None)


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process {pid}") from None

"""Finds how much memory this process can still use: the machine's available memory, or less in a container."""

from contextlib import suppress
from os import sysconf
from pathlib import Path, PurePosixPath

_V1 = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
"""For each version of control groups: the mount point, the files with the limit and the use, and the part of the use in
`memory.stat` that the kernel frees when it is needed, such as files of weights that were read."""


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that can be used without swapping (`MemAvailable`: unlike free memory, with the cache), or
    what is left of the smallest limit of this process's control groups. On systems other than Linux: all memory."""
    try:
        rooms = [_value(root / "proc/meminfo", "MemAvailable:") * 1024]
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, LookupError):
        return sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            mount, limit, use, freeable = _V1 if controllers else _V2
            own = PurePosixPath(path)
            # In a container the own group may be the mounted root, though its path is the host's.
            for at in (own, *own.parents):
                folder = root / mount / at.relative_to("/")
                with suppress(OSError, ValueError, LookupError):  # no such group, or "max"
                    used = int((folder / use).read_text()) - _value(folder / "memory.stat", freeable)
                    rooms.append(int((folder / limit).read_text()) - used)
    return max(0, min(rooms))


def _value(path: Path, name: str) -> int:
    """Returns the number after a name. Raises OSError, KeyError."""
    lines = (line.split() for line in path.read_text().splitlines())
    return int({line[0]: line[1] for line in lines if len(line) > 1}[name])

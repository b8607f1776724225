"""Sizes the KV cache of an engine on a CPU by the memory that can still be used."""

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

CPU_KV_TOKENS = 131_072
CPU_KV_SHARE = 8
"""One part in 8 of the available memory. transformers takes 60 % by default, and 15 s to fill it
with zeros."""
LEAST_TOKENS = 128


class _ControlGroups(NamedTuple):
    """The files of one version of control groups."""

    mount: str
    limit: str
    use: str
    freeable: str
    """The part of the use in `memory.stat` that the kernel frees when it is needed, such as files
    of weights that were read."""


_V1 = _ControlGroups(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)
_V2 = _ControlGroups("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def cpu_kv_tokens(bytes_per_token: int, window: int, available: int) -> tuple[int, str]:
    """Returns the default capacity of the KV cache on a CPU, and why it is not larger.

    One window if memory allows, but no more than is useful. `available`: bytes of memory, by
    `available_bytes`.
    """
    room = available // CPU_KV_SHARE // max(1, bytes_per_token)
    useful = min(max(window, CPU_KV_TOKENS // 4), CPU_KV_TOKENS)
    tokens = useful
    why = "a CPU's KV cache has no more tokens by default"
    if room < useful:
        tokens = max(LEAST_TOKENS, room)
        memory = f"1/{CPU_KV_SHARE} of the {available / 2**30:.1f} GiB of available memory"
        why = f"{memory} holds no more tokens, of {bytes_per_token:,} bytes each"
    return tokens, f"{why}; --kv-tokens sets another size"


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that can be used without swapping (`MemAvailable`: unlike free memory,
    with the cache), or what is left of the smallest limit of this process's control groups. On
    systems other than Linux: all memory."""
    try:
        rooms = [_value(root / "proc/meminfo", "MemAvailable:") * 1024]
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, LookupError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            rooms += _rooms(root, _V2, PurePosixPath(path))
        elif "memory" in controllers.split(","):
            rooms += _rooms(root, _V1, PurePosixPath(path))
    return max(0, min(rooms))


def _rooms(root: Path, files: _ControlGroups, group: PurePosixPath) -> list[int]:
    """Returns what is left of the limits of a control group and of those that it belongs to."""
    rooms: list[int] = []
    # In a container the own group may be the mounted root, though its path is the host's.
    for path in (group, *group.parents):
        folder = root / files.mount / path.relative_to("/")
        with suppress(OSError, ValueError, LookupError):  # no such group, or "max"
            freeable = _value(folder / "memory.stat", files.freeable)
            used = int((folder / files.use).read_text()) - freeable
            rooms.append(int((folder / files.limit).read_text()) - used)
    return rooms


def _value(path: Path, name: str) -> int:
    """Returns the number after a name. Raises OSError, KeyError."""
    lines = (line.split() for line in path.read_text().splitlines())
    return int({line[0]: line[1] for line in lines if len(line) > 1}[name])

"""Gives processes a share of a core: a machine with few cores then shows how more processes of a
stage scale."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 10_000
"""Time in which a share is used and refilled: a step of the measured streams. The kernel accepts no
share below a millisecond."""
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def limited(pids: Mapping[str, int], share: float) -> Iterator[None]:
    """Lets each process use `share` of a core; afterwards there is no limit. Needs root and Linux's
    cgroups.

    Raises OSError.
    """
    version_1 = _V1.is_dir()
    parent = (_V1 if version_1 else _V2) / f"turnwire-bench-{os.getpid()}"
    made: list[Path] = []
    try:
        parent.mkdir()
        made.append(parent)
        if not version_1:
            (parent / "cgroup.subtree_control").write_text("+cpu")
        for name, pid in pids.items():
            group = parent / name
            group.mkdir()
            made.append(group)
            quota = int(share * PERIOD_US)
            if version_1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in reversed(made):
            for member in (group / "cgroup.procs").read_text().split():
                (parent.parent / "cgroup.procs").write_text(member)
            group.rmdir()

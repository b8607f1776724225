"""The memory that a process can still use, by the files of the kernel."""

from pathlib import Path

import pytest

from services.worker.engines.memory import LEAST_TOKENS, available_bytes, cpu_kv_tokens

GIB = 2**30


def write(root: Path, own: str, groups: dict[str, tuple[int | None, int]]) -> None:
    """A machine with 20 GiB available and a process in the group `own`. `groups`: path → limit and
    page cache in GiB; each has used 2 GiB."""
    (root / "proc/self").mkdir(parents=True)
    meminfo = f"MemFree: {2**20} kB\nMemAvailable: {20 * 2**20} kB\nHuge: 0\n"
    (root / "proc/meminfo").write_text(meminfo)
    (root / "proc/self/cgroup").write_text(f"0::{own}\n")
    for path, (limit, cache) in groups.items():
        folder = Path(f"{root}/sys/fs/cgroup{path}")
        folder.mkdir(parents=True, exist_ok=True)
        most = "max" if limit is None else limit * GIB
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{2 * GIB}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache * GIB}\n")


@pytest.mark.parametrize(
    ("own", "groups", "expected"),
    [
        ("/a", {"": (None, 0), "/a": (64, 0)}, 20),
        ("/a/b", {"/a": (8, 1), "/a/b": (None, 0)}, 7),
        ("/docker/0123/init", {"": (4, 0)}, 2),  # a container, whose group has the host's path
    ],
)
def test_smallest_limit_of_the_groups_counts(
    tmp_path: Path, own: str, groups: dict[str, tuple[int | None, int]], expected: int
) -> None:
    write(tmp_path, own, groups)
    assert available_bytes(tmp_path) == expected * GIB


def test_cache_stays_within_an_eighth_of_the_memory() -> None:
    for bytes_per_token, available, window, expected in (
        (1_000_000, 8_000_000_000, 40_960, 1_000),
        (1_000, 64_000_000_000, 40_960, 40_960),
        (1_000, 64_000_000_000, 1_000_000, 131_072),
        (10**9, 10**6, 2_048, LEAST_TOKENS),
    ):
        tokens, reason = cpu_kv_tokens(bytes_per_token, window, available)
        limited = expected < window and expected != 131_072
        assert (tokens, "available memory" in reason) == (expected, limited)

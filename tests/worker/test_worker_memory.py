"""The memory that a process can still use, by the files of the kernel."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.worker.engines.memory import LEAST_TOKENS, available_bytes, cpu_kv_tokens
from tests.kit.every import for_each

GIB = 2**30


def write(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def meminfo(available: int, free: int) -> str:
    return f"MemFree: {free // 1024} kB\nMemAvailable: {available // 1024} kB\nHuge: 0"


def group(version: int, path: str, limit: object, used: int, cache: int) -> dict[str, object]:
    if version == 1:
        folder = f"sys/fs/cgroup/memory{path}"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        stat = f"cache 1\ntotal_inactive_file {cache}"
    else:
        folder, names = f"sys/fs/cgroup{path}", ("memory.max", "memory.current")
        stat = f"anon 1\ninactive_file {cache}"
    return {
        f"{folder}/{names[0]}": limit,
        f"{folder}/{names[1]}": used,
        f"{folder}/memory.stat": stat,
    }


def line(version: int, path: str) -> str:
    return f"0::{path}" if version == 2 else f"9:cpu:/other\n4:hugetlb,memory:{path}\n0::/elsewhere"


@for_each(range(20))
@pytest.mark.parametrize("version", [1, 2])
def test_smallest_limit_of_the_groups_counts(seed: int, tmp_path: Path, version: int) -> None:
    rng = random.Random(seed)
    available = rng.randrange(GIB, 32 * GIB) // 1024 * 1024
    paths = ["", "/a", "/a/b", "/a/b/c"][: rng.randrange(1, 5)]
    files: dict[str, object] = {"proc/meminfo": meminfo(available, GIB)}
    rooms = [available]
    for path in paths:
        limit = rng.choice([None, rng.randrange(GIB, 32 * GIB)])
        used = rng.randrange(GIB)
        cache = rng.randrange(used)
        unlimited = "max" if version == 2 else 2**63 - 4096
        files |= group(version, path, unlimited if limit is None else limit, used, cache)
        rooms += [] if limit is None else [limit - used + cache]
    own = paths[-1] or "/"
    files["proc/self/cgroup"] = line(version, own)
    assert available_bytes(write(tmp_path / str(seed), files)) == min(rooms)


@pytest.mark.parametrize("version", [1, 2])
def test_limit_of_a_container_counts_where_its_group_has_the_path_of_the_host(
    tmp_path: Path, version: int
) -> None:
    files = {
        "proc/meminfo": meminfo(20 * GIB, GIB),
        "proc/self/cgroup": line(version, "/docker/0123/init"),
    }
    assert available_bytes(write(tmp_path, files | group(version, "", 4 * GIB, GIB, 0))) == 3 * GIB


def test_cache_stays_within_an_eighth_of_the_memory() -> None:
    def tokens(bytes_per_token: int, available: int, window: int) -> int:
        return cpu_kv_tokens(bytes_per_token, window, available)[0]

    assert tokens(1_000_000, 8_000_000_000, 40_960) == 1_000
    assert tokens(1_000, 64_000_000_000, 40_960) == 40_960
    assert tokens(1_000, 64_000_000_000, 1_000_000) == 131_072
    assert tokens(1_000, 64_000_000_000, 2_048) == 32_768
    assert tokens(10**9, 10**6, 2_048) == LEAST_TOKENS
    assert "available memory" in cpu_kv_tokens(1_000_000, 40_960, 8_000_000_000)[1]
    assert "available memory" not in cpu_kv_tokens(1_000, 1_000_000, 64_000_000_000)[1]

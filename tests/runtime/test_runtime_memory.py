"""Freed memory stays with the process, to be used again."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from services.runtime.observability.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        [bytes(300_000) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
assert keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_buffers_that_come_and_go_cost_no_pages() -> None:
    counts = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)
    before, after = map(int, counts.split())
    assert 10 * after < before

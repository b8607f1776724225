"""Freed memory stays with the process, to be used again."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from services.runtime.observability.memory import keep_freed_memory
assert {call}
def buffers():
    return [bytes(300_000) for _ in range(4)]
buffers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    buffers()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(call=call)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_buffers_that_come_and_go_cost_no_pages() -> None:
    assert 10 * faults("keep_freed_memory()") < faults("True")

"""Describes the machine of a measurement, and writes results as JSON."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec

RESULTS = Path(__file__).parent / "results"
BUSY_CORES = 0.1
"""With more cores used by other work, a case counts as disturbed."""


class Machine(msgspec.Struct, frozen=True):
    """The machine of a measurement."""

    cores: int
    processor: str
    system: str
    python: str
    load_before: float
    """One-minute load average at the start: shows other work on the machine."""
    gpus: list[str] = []
    """The names of NVIDIA GPUs, as nvidia-smi prints them."""


def this_machine() -> Machine:
    """Returns the facts of the machine on which this runs."""
    processors = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=processors[0] if processors else platform.machine(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load_before=round(os.getloadavg()[0], 2),
        gpus=_gpus(),
    )


def _gpus() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.check_output(command, text=True).splitlines()
    except (OSError, subprocess.CalledProcessError):  # no GPU, or no driver
        return []


def now() -> str:
    """Returns the time in the form of results."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_path(started: str, label: str) -> Path:
    """Returns the path of a new result in `bench/results`."""
    stamp = started.replace(":", "").replace("-", "")
    return RESULTS / f"{stamp}-{label}.json"


def write(result: object, path: Path) -> None:
    """Writes a result, which msgspec can encode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")

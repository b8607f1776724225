"""`python -m fuzz.seed DIR`: a corpus for each target, in a folder of its name."""

import sys
from importlib import import_module
from pathlib import Path

from fuzz.targets import TARGETS


def seed(folder: Path) -> dict[str, int]:
    """Writes the seeds of all targets; returns how many each has."""
    counts: dict[str, int] = {}
    for name in TARGETS:
        target = import_module(f"fuzz.targets.{name}")
        corpus = folder / name
        corpus.mkdir(parents=True, exist_ok=True)
        for title, data in target.seeds():
            (corpus / title).write_bytes(data)
            counts[name] = counts.get(name, 0) + 1
    return counts


if __name__ == "__main__":
    for name, count in seed(Path(sys.argv[1])).items():
        print(f"{name}: {count} seeds")

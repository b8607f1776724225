"""`python -m fuzz TARGET [libFuzzer's arguments]`: runs one target (README.md).

`python -m fuzz TARGET --seeds DIR` writes the target's corpus into a folder. The first violated
property ends a run, with the input in libFuzzer's `crash-*` file.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

from fuzz.targets import TARGETS


def write_seeds(target: ModuleType, folder: Path) -> int:
    """Writes the target's corpus. Returns the number of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = list(target.seeds())
    for title, data in seeds:
        (folder / title).write_bytes(data)
    return len(seeds)


def main() -> None:
    """Runs libFuzzer, which does not return; or writes seeds."""
    arguments = argparse.ArgumentParser(prog="python -m fuzz", usage=__doc__)
    arguments.add_argument("target", choices=TARGETS)
    arguments.add_argument("--seeds", type=Path, metavar="DIR")
    options, rest = arguments.parse_known_args()
    name = f"fuzz.targets.{options.target}"
    if options.seeds:
        print(f"{write_seeds(import_module(name), options.seeds)} seeds")
        return

    import atheris

    with atheris.instrument_imports(include=[TARGETS[options.target]]):
        target = import_module(name)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < 0.1:
            return bytes(atheris.Mutate(data, max_size))
        return bytes(target.mutate(data, chance)[:max_size])

    atheris.Setup([sys.argv[0], *rest], target.one, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

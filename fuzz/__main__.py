"""`python -m fuzz TARGET [libFuzzer's arguments]`: runs one target (README.md).

`python -m fuzz TARGET --seeds DIR` writes the target's corpus into a folder. The first violated
property ends a run, with the input in libFuzzer's `crash-*` file.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from random import Random

TARGETS = {
    "parser": "services.parser",
    "bodies": "services.frontend.apis",
}
"""Each target, and the package that is measured for its coverage."""


def main() -> None:
    """Runs libFuzzer, which does not return; or writes seeds."""
    arguments = argparse.ArgumentParser(prog="python -m fuzz", usage=__doc__)
    arguments.add_argument("target", choices=TARGETS)
    arguments.add_argument("--seeds", type=Path, metavar="DIR")
    options, rest = arguments.parse_known_args()
    name = f"fuzz.targets.{options.target}"
    if options.seeds:
        options.seeds.mkdir(parents=True, exist_ok=True)
        for title, data in import_module(name).seeds():
            (options.seeds / title).write_bytes(data)
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

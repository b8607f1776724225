"""`python -m fuzz TARGET [--findings DIR] [libFuzzer's arguments]`: runs one target (README.md).

`python -m fuzz TARGET --seeds DIR` writes the target's corpus into a folder.

Without `--findings` the first violated property ends the run, with the input in libFuzzer's
`crash-*` file. With it the run goes on, and the directory gets the shortest input for each distinct
failure.
"""

import argparse
import hashlib
import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

from fuzz.targets import TARGETS


class Findings:
    """The shortest input of each distinct failure, as files."""

    def __init__(self, folder: Path, show: Callable[[bytes], str]) -> None:
        self._folder, self._show = folder, show
        self._folder.mkdir(parents=True, exist_ok=True)
        self._size: dict[str, int] = {}

    def add(self, data: bytes, error: BaseException) -> None:
        """Keeps `data` if nothing shorter fails in the same way."""
        name = _signature(data, error)
        if self._size.get(name, 1 << 30) <= len(data):
            return
        if name not in self._size:
            print(f"FINDING {name}: {str(error)[:300]}", file=sys.stderr, flush=True)
        self._size[name] = len(data)
        (self._folder / name).write_bytes(data)
        details = "".join(traceback.format_exception(error))
        text = f"{self._show(data)}\n{details}"
        (self._folder / f"{name}.txt").write_bytes(text.encode("utf-8", "backslashreplace"))


def _signature(data: bytes, error: BaseException) -> str:
    """Identifies a failure by property or exception, innermost line, and first byte (the parser's
    family)."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    property = str(error).partition(":")[0] if isinstance(error, AssertionError) else ""
    what = re.sub(r"\W+", "-", property[:40]) or type(error).__name__
    family = hashlib.sha1(data[:1]).hexdigest()[:6]
    return f"{what}-{Path(frame.filename).stem}-{frame.lineno}-{family}"


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
    arguments.add_argument("--findings", type=Path, metavar="DIR")
    arguments.add_argument("--seeds", type=Path, metavar="DIR")
    options, rest = arguments.parse_known_args()
    name = f"fuzz.targets.{options.target}"
    if options.seeds:
        print(f"{write_seeds(import_module(name), options.seeds)} seeds")
        return

    import atheris

    with atheris.instrument_imports(include=[TARGETS[options.target]]):
        target = import_module(name)
    show = getattr(target, "show", repr)
    findings = Findings(options.findings, show) if options.findings else None

    def one(data: bytes) -> None:
        try:
            target.one(data)
        except Exception as error:
            if findings is None:
                raise
            findings.add(data, error)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < 0.1:
            return bytes(atheris.Mutate(data, max_size))
        return bytes(target.mutate(data, chance)[:max_size])

    atheris.Setup([sys.argv[0], *rest], one, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

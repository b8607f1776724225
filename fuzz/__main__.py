"""`python -m fuzz TARGET [--findings DIR] [libFuzzer's arguments]`: runs one target (README.md).

Without `--findings` the first violated property ends the run, with the input in libFuzzer's
`crash-*` file. With it the run goes on, and the directory gets the shortest input for each distinct
failure.
"""

import argparse
import hashlib
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random

import atheris

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
        details = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        (self._folder / f"{name}.txt").write_bytes(
            self._show(data).encode("utf-8", "backslashreplace") + b"\n" + details
        )


def _signature(data: bytes, error: BaseException) -> str:
    """Identifies a failure by property or exception, innermost line, and first byte (the parser's
    family)."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).stem}-{frames[-1].lineno}"
    what = str(getattr(error, "property", type(error).__name__)).replace(" ", "-")
    return f"{what}-{where}-{hashlib.sha1(data[:1]).hexdigest()[:6]}"


def main() -> None:
    """Runs libFuzzer; does not return."""
    arguments = argparse.ArgumentParser(prog="python -m fuzz", usage=__doc__)
    arguments.add_argument("target", choices=TARGETS)
    arguments.add_argument("--findings", type=Path)
    options, rest = arguments.parse_known_args()
    with atheris.instrument_imports(include=[TARGETS[options.target]]):
        target = import_module(f"fuzz.targets.{options.target}")
    findings = (
        Findings(options.findings, getattr(target, "show", repr)) if options.findings else None
    )

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

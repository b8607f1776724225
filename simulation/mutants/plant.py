"""Loads a module of the services with one text changed. Nothing is written to disk."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from typing_extensions import override

from simulation.reach import with_calls

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """One fault, in one place."""

    name: str
    """What is broken."""
    file: str
    """Path from the repository's root."""
    before: str
    """The text that is replaced, which occurs once in the file."""
    after: str

    @property
    def module(self) -> str:
        """The name of the file's module."""
        return self.file.removesuffix(".py").replace("/", ".")

    def code(self) -> CodeType:
        """Compiles the changed file. Raises ValueError if the text does not occur exactly once,
        SyntaxError."""
        path = ROOT / self.file
        source = path.read_text(encoding="utf-8")
        if (count := source.count(self.before)) != 1:
            raise ValueError(f"{self.name}: the text occurs {count} times in {self.file}")
        return compile(with_calls(source.replace(self.before, self.after)), str(path), "exec")


class _Loader(SourceFileLoader):
    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(ROOT / mutant.file))
        self._mutant = mutant

    @override
    def get_code(self, fullname: str) -> CodeType:
        return self._mutant.code()


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        return spec_from_file_location(fullname, loader=_Loader(self._mutant))


def plant(mutant: Mutant) -> None:
    """Makes this interpreter import a mutant in place of its module, which must not have been
    imported."""
    if mutant.module in sys.modules:
        raise RuntimeError(f"{mutant.module} was imported already")
    sys.meta_path.insert(0, _Finder(mutant))

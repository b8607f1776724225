"""Notes which rare branches of the services the simulation reaches, and lets faults wait for one.

A rare branch is marked in the code itself, by a comment of its own at its beginning:

    # rare: a successor takes over in the middle of a call

Modules of `services` are loaded with a call in the place of each such comment.
"""

import builtins
import importlib.abc
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

_MARK = re.compile(r"^(\s*)# rare: (.+)$", re.MULTILINE)
_CALL = "__reached__"

SERVICES = Path(__file__).parent.parent / "services"

HITS: Counter[str] = Counter()
"""How often each branch was reached in this interpreter."""
LISTENERS: list[Callable[[str], None]] = []
"""Called with each branch that is reached."""


class _Loader(SourceFileLoader):
    def source_to_code(self, data: object, path: object, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        text = bytes(data).decode()  # type: ignore[call-overload]
        return compile(with_calls(text), str(path), "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the source, without a cache."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("services."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def install() -> None:
    """Lets marks be noted; to be called before the services are imported."""
    setattr(builtins, _CALL, reached)
    sys.meta_path.insert(0, _Finder())


def listen(call: Callable[[str], None]) -> None:
    """Sets what is called with the name of each branch that is reached from now on, in the process
    that reaches it."""
    LISTENERS[:] = [call]


def reached(name: str) -> None:
    """Notes that a branch is reached."""
    HITS[name] += 1
    for call in LISTENERS:
        call(name)


def with_calls(source: str) -> str:
    """The source of a module with a call in the place of each mark."""
    return _MARK.sub(lambda mark: f"{mark[1]}{_CALL}({mark[2].strip()!r})", source)


@cache
def marks() -> Sequence[str]:
    """The names of all rare branches of the services."""
    files = [file.read_text(encoding="utf-8") for file in sorted(SERVICES.rglob("*.py"))]
    return [mark[2].strip() for text in files for mark in _MARK.finditer(text)]


def take() -> dict[str, int]:
    """The branches that were reached since the last call."""
    hits = dict(HITS)
    HITS.clear()
    return hits

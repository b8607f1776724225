"""The Python blocks of docs/extending.md import only what the packages of this repository have."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
PACKAGES = ("schemas", "services", "turnwire_tools")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[ast.Module]:
    return [ast.parse(body) for body in _BLOCK.findall(PAGE.read_text(encoding="utf-8"))]


def imports(block: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Module, name and local name of each import from this repository."""
    for node in ast.walk(block):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for alias in node.names:
                yield node.module or "", alias.name, alias.asname or alias.name


def imported(module: str, name: str) -> object:
    """The value that `from module import name` binds. Raises ImportError."""
    package = importlib.import_module(module)
    if hasattr(package, name):
        return getattr(package, name)
    return importlib.import_module(f"{module}.{name}")


def missing(block: ast.Module) -> Iterator[str]:
    """Names that a block imports or reads from a module, and that do not exist."""
    modules: dict[str, ModuleType] = {}
    for module, name, local in imports(block):
        try:
            value = imported(module, name)
        except ImportError:
            yield f"{module}.{name}"
            continue
        if isinstance(value, ModuleType):
            modules[local] = value

    for node in ast.walk(block):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            source = modules.get(node.value.id)
            if source is not None and not hasattr(source, node.attr):
                yield f"{node.value.id}.{node.attr}"


def test_page_has_examples_with_imports() -> None:
    assert len([block for block in blocks() if list(imports(block))]) >= 5


@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"{len(block.body)} statements")
def test_names_of_an_example_exist(block: ast.Module) -> None:
    assert list(missing(block)) == []

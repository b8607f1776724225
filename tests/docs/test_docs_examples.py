"""The Python blocks of docs/extending.md import only what the packages of this repository have."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
PACKAGES = ("schemas", "services", "turnwire_tools")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[ast.Module]:
    """Those that are whole: an indented one is a part of a class or table."""
    bodies = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return [ast.parse(body) for body in bodies if not body.startswith(" ")]


def imports(block: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Module, name and local name of each import from this repository; not of a module that the page
    makes."""
    for node in ast.walk(block):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            if f"`{(node.module or '').replace('.', '/')}.py`:\n" in PAGE.read_text():
                continue
            for alias in node.names:
                yield node.module or "", alias.name, alias.asname or alias.name


def missing(block: ast.Module) -> Iterator[str]:
    """Names that a block imports or reads from a module, and that do not exist."""
    modules: dict[str, ModuleType] = {}
    for module, name, local in imports(block):
        try:
            value = getattr(importlib.import_module(module), name, None)
            value = importlib.import_module(f"{module}.{name}") if value is None else value
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


def test_names_of_the_examples_exist() -> None:
    assert len([block for block in blocks() if list(imports(block))]) >= 5
    assert [name for block in blocks() for name in missing(block)] == []

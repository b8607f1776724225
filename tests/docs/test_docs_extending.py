"""Follows the recipes of docs/extending.md literally, all of them in one copy of the repository, with
the static checks and the tests that the page names. Two minutes on two cores."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.reader import ROOT, copy_repository

PAGE = ROOT / "docs" / "extending.md"
_STEP = re.compile(
    r"`(?P<file>[\w./]+/[\w.]+\.(?:py|jsonl)|pyproject\.toml)`"
    r"(?:, (?P<place>at the end of|before|after) `(?P<at>[^`]+)`)?"
)
_TESTS = re.compile(r"`(tests/[\w/]+\.py)`")
_RUN = re.compile(r"`\.venv/bin/python (\S+)`")


class Step(NamedTuple):
    """Code that goes into a file: as its whole, or at a place in it."""

    file: str
    place: str
    at: str
    code: str


def steps(text: str) -> Iterator[Step]:
    """The blocks whose paragraph names a file, in order."""
    paragraph, before, code = "", "", None
    for line in text.splitlines(keepends=True):
        if code is not None and line == "```\n":
            found = _STEP.search(paragraph)
            if found is not None:
                yield Step(found["file"], found["place"] or "", found["at"] or "", code)
            paragraph, code = "", None
        elif code is not None:
            code += line
        elif line.startswith("```"):
            code = ""
        elif line.strip():
            paragraph = f"{paragraph} {line.strip()}" if before.strip() else line.strip()
        before = line


def follow(step: Step, clone: Path) -> None:
    path = clone / step.file
    if step.file.endswith(".toml"):
        header, _, lines = step.code.partition("\n")
        _replace(path, f"{header}\n", f"{header}\n{lines}")
    elif not step.place:
        assert not path.exists(), path
        path.write_text(step.code)
    elif step.place == "at the end of":
        _insert_at_end(path, step.at, step.code)
    else:
        line = f"{step.at}\n"
        code = line + step.code if step.place == "after" else step.code + line
        _replace(path, line, code)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old!r}"
    path.write_text(text.replace(old, new))


def _insert_at_end(path: Path, name: str, code: str) -> None:
    """Adds lines at the end of a class or function (`Class.method`), or of a tuple, set, table or
    text."""
    lines = path.read_text().splitlines(keepends=True)
    node = _definition(ast.parse("".join(lines)), name.split("."))
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        end = node.body[-1].end_lineno
        assert end is not None
        path.write_text("".join([*lines[:end], code, *lines[end:]]))
        return
    kinds = ast.Dict | ast.Set | ast.Tuple | ast.Constant
    literal = next(part for part in ast.walk(node) if isinstance(part, kinds))
    assert literal.end_lineno is not None
    end = literal.end_lineno - 1
    assert lines[end].strip()[0] in ')}"', f"{path}: {name} ends on a line with other text"
    path.write_text("".join([*lines[:end], code, *lines[end:]]))


def _definition(module: ast.Module, names: list[str]) -> ast.stmt:
    body = module.body
    for name in names:
        (found,) = (node for node in body if name in _names(node))
        body = getattr(found, "body", [])
    return found


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.mark.slow
def test_recipes_pass_the_static_checks_and_the_tests_that_they_name(tmp_path: Path) -> None:
    copy_repository(tmp_path)
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", tmp_path / ".mypy_cache")
    text = PAGE.read_text(encoding="utf-8").partition("## Pieces to use on their own")[0]
    added = list(steps(text))
    assert len(added) >= 15, added
    for step in added:
        follow(step, tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)  # the checks list its files
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)

    def run(*command: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"

    python = Path(sys.executable)
    for script in _RUN.findall(text):
        run(str(python), script)
    run(".ci/lint", str(python.parent))
    named = list(dict.fromkeys(_TESTS.findall(text)))
    own = [name for name in named if Path(name).name.startswith("test_") and "docs" not in name]
    assert len(own) >= 10
    run(str(python), "-m", "pytest", "-n", "2", "-q", *own)

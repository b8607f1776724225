"""The wheels of distributions/: what they contain, and that they work with what they require."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from distributions.build import distributions, main
from services import __version__
from tests.kit.tokenizer_zoo import make

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDERS = {folder.name: folder for folder in distributions()}
NAMES = sorted(FOLDERS)
PREFIX = "turnwire-"
PACKAGES = {
    "parsers": ["services/__init__.py", "services/families/"],
    "schemas": ["schemas/"],
    "tokenization": [
        "services/tokenization/",
        "services/runtime/__init__.py",
        "services/runtime/long_work.py",
    ],
}
NEEDS_AN_EXTRA = {"services.tokenization.image_processor": "PIL"}
IMPORT_ALL = """
import importlib, sys
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(module, error.name)
"""


def project(pyproject: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(pyproject.read_text())["project"]
    return table


def required(name: str) -> list[Requirement]:
    return list(map(Requirement, project(FOLDERS[name] / "pyproject.toml")["dependencies"]))


def siblings(name: str) -> list[str]:
    """The distributions of this repository that one requires, itself included."""
    names = [requirement.name for requirement in required(name)]
    return [name, *(one.removeprefix(PREFIX) for one in names if one.startswith(PREFIX))]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    main(folder)
    return folder


def wheel(wheels: Path, name: str) -> zipfile.ZipFile:
    (path,) = wheels.glob(f"turnwire_{name}-{__version__}-*.whl")
    return zipfile.ZipFile(path)


def contents(wheels: Path, name: str) -> list[str]:
    return [path for path in wheel(wheels, name).namelist() if ".dist-info/" not in path]


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each distribution, a folder for a Python that has only what it requires."""
    folders = {}
    for name in NAMES:
        folders[name] = tmp_path_factory.mktemp(name)
        for sibling in siblings(name):
            wheel(wheels, sibling).extractall(folders[name])
            link_libraries(sibling, folders[name])
    return folders


def link_libraries(name: str, folder: Path) -> None:
    """Makes the libraries that a distribution requires importable from a folder."""
    for requirement in required(name):
        if requirement.name.startswith(PREFIX):
            continue
        found = distribution(requirement.name)
        for part in {file.parts[0] for file in found.files or () if ".." not in file.parts}:
            if not (folder / part).exists():
                (folder / part).symlink_to(str(found.locate_file(part)))


def run(folder: Path, cwd: Path, program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-S", "-B", "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def example(name: str) -> str:
    """The example of a distribution in docs/extending.md."""
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    found = re.search(rf"^`turnwire-{name}`, .*?^```python\n(.*?)^```$", page, re.M | re.S)
    assert found is not None
    return found[1]


def test_wheels_contain_their_packages_whole_and_nothing_else(wheels: Path) -> None:
    tree = {str(path.relative_to(ROOT)) for path in ROOT.glob("s*/**/*.py")}
    every: list[str] = []
    for name in NAMES:
        files = contents(wheels, name)
        packages = tuple(PACKAGES[name])
        expected = {path for path in tree if path.startswith(packages)}
        assert {path for path in files if path.endswith(".py")} == expected
        assert {Path(path).name for path in files if not path.endswith(".py")} <= {"py.typed"}
        every += files
    assert len(every) == len(set(every)), "no file is in two wheels"


@pytest.mark.parametrize("name", NAMES)
def test_every_module_is_imported_without_the_rest_of_turnwire(
    wheels: Path, installed: dict[str, Path], tmp_path: Path, name: str
) -> None:
    paths = [path.removesuffix(".py") for path in contents(wheels, name) if path.endswith(".py")]
    mine = sorted(path.removesuffix("/__init__").replace("/", ".") for path in paths)
    others = ["aiohttp", "cyclopts", "nats", "structlog", "uvloop"]
    assert all(importlib.util.find_spec(other) for other in others)  # here they could be imported

    missing = run(installed[name], tmp_path, IMPORT_ALL, *mine, *others)

    expected = [f"{module} {NEEDS_AN_EXTRA[module]}" for module in mine if module in NEEDS_AN_EXTRA]
    assert missing == [*expected, *(f"{other} {other}" for other in others)]


def test_examples_of_the_page_run(installed: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = make("qwen")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    lines = {name: run(installed[name], tmp_path, example(name)) for name in NAMES}
    assert lines["parsers"][-1].startswith("BlockStop(block=1, complete=True,")
    (tokens,) = lines["tokenization"]
    assert "'🌊'" in tokens
    assert lines["schemas"][0] == "tw.v2.evt.frontend-1"
    assert "text='Hi'" in lines["schemas"][1]

"""Builds a wheel of each folder here from this tree, without the network: `python
distributions/build.py DIRECTORY`.

Each is built in a copy of the tree, so that nothing of an earlier build gets into a wheel.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = ("schemas", "services")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]


def distributions() -> Iterator[Path]:
    """The folders of the distributions, in alphabetical order."""
    return (project.parent for project in sorted(HERE.glob("*/pyproject.toml")))


def build(distribution: Path, wheels: Path) -> None:
    """Builds the wheel of one folder into the directory `wheels`.

    Raises subprocess.CalledProcessError where pip fails, as it does without setuptools.
    """
    with tempfile.TemporaryDirectory(prefix="turnwire-") as copy:
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(HERE.parent / package, Path(copy, package), ignore=ignored)
        shutil.copy(HERE.parent / "LICENSE", copy)
        shutil.copy(distribution / "pyproject.toml", copy)
        options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels)]
        subprocess.run([*PIP, *options, copy], check=True)


def main(wheels: Path) -> None:
    """Builds all wheels, and prints their directory."""
    for distribution in distributions():
        build(distribution, wheels.resolve())
    print(f"wheels of {', '.join(folder.name for folder in distributions())} are in {wheels}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

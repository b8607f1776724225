"""A family can be added from outside the tree: one file, and an entry point."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAMILY = '''
"""Acme. <acme>{"name": "run_shell", "arguments": {"cmd": "ls"}}</acme>"""

from services.families.authoring import Family, Style, tagged_json

FAMILY = Family(
    name="acme",
    models="Acme 1",
    tool_parsers=("acme_json", "hermes"),
    grammar=tagged_json("<acme>", closer="</acme>", think=(("<hm>", "</hm>"),), stops=("<end>",)),
    style=Style(call='<acme>{"name": "{name}", "arguments": {arguments}}</acme>', reasoning="<hm>{text}</hm>"),
    evidence=("<acme>",),
)
'''


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of installed packages with one that adds a family."""
    (tmp_path / "acme_turnwire.py").write_text(FAMILY)
    about = tmp_path / "acme_turnwire-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-turnwire\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[turnwire.families]\nacme = acme_turnwire:FAMILY\n")
    return tmp_path


def run(installed: Path, *arguments: str, stdin: str = "") -> str:
    path = f"{ROOT}:{installed}"
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_output_of_an_added_family_is_parsed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('[{"name": "ls", "parameters": {}}]')
    raw = '<hm>So.</hm>Look.<acme>{"name": "ls", "arguments": {"at": 1}}</acme>'
    command = (
        "-m",
        "services.cli.main",
        "parse",
        "--family",
        "acme-json",
        "--tools",
        str(tmp_path / "tools.json"),
    )
    lines = run(installed, *command, stdin=raw).splitlines()
    assert [line for line in lines if "dispatch" in line] == ['[2] dispatch ls {"at": 1}']


def test_added_family_is_listed_and_detected_and_takes_no_name_from_others(installed: Path) -> None:
    code = """
from services.families import families, family
from services.families.detection import detect
found = detect({}, "{{ '<acme>' }}")
print(list(families())[-1], found.family.name, family("hermes").name, family("acme").stops)
"""
    assert run(installed, "-c", code).split(maxsplit=3) == [
        "acme",
        "acme",
        "hermes",
        "('<end>',)\n",
    ]


def test_family_is_unknown_without_its_package(tmp_path: Path) -> None:
    assert (
        run(tmp_path, "-c", "from services.families import families; print('acme' in families())")
        == "False\n"
    )

"""A family can be added from outside the tree: one file, and an entry point."""

import subprocess
import sys
from pathlib import Path

from tests.kit.installing import install

ROOT = Path(__file__).parents[2]
FAMILY = '''
"""Apex. <apex>{"name": "run_shell", "arguments": {"cmd": "ls"}}</apex>"""

from services.families.authoring import Family, Style, tagged_json

FAMILY = Family(
    name="apex",
    models="Apex 1",
    tool_parsers=("apex_json", "hermes"),
    grammar=tagged_json("<apex>", closer="</apex>", think=(("<hm>", "</hm>"),), stops=("<end>",)),
    style=Style(call='<apex>{"name": "{name}", "arguments": {arguments}}</apex>', reasoning="<hm>{text}</hm>"),
    evidence=("<apex>",),
)
'''
USE = """
from schemas.conversation import ToolSpec
from services.families import families, find_family, open_parser
from services.families.markup_evidence import detect
print(list(families())[-1], find_family("hermes").name, find_family("apex").stops)
print(detect({}, "{{ '<apex>' }}").family.name)
parser = open_parser("apex-json", tools=[ToolSpec("ls")])
print(*parser.feed('<hm>So.</hm>Look.<apex>{"name": "ls", "arguments": {"at": 1}}</apex>'), sep="\\n")
"""


def test_added_family_is_listed_detected_and_read_and_takes_no_name_from_others(
    tmp_path: Path,
) -> None:
    entry = "apex = apex_turnwire:FAMILY"
    install(tmp_path, "apex_turnwire", FAMILY, "turnwire.families", entry)
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["apex hermes ('<end>',)", "apex"]
    assert "BlockStart(block=2, kind='tool_use', name='ls', call_id=None)" in lines
    assert lines[-1].startswith("BlockStop(block=2, complete=True, length=9")

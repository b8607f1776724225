"""The list of the inspector's page, in Node.js: the order of sessions and of the helpers that they
started."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import turnwire_tools.inspector

NODE = shutil.which("node")
LIST = Path(turnwire_tools.inspector.__file__).parent / "page" / "list.js"
GROUP_BY = """
Map.groupBy ??= (rows, key) => {
  const groups = new Map();
  for (const row of rows) groups.set(key(row), [...(groups.get(key(row)) ?? []), row]);
  return groups;
};
"""
"""Browsers have it, and Node.js from version 21 on."""

pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")


def tree(parents: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    """Returns the session and depth of each row. `parents`: sessions with their parents, the newest
    first."""
    rows = [{"session": session, "parent": parent} for session, parent in parents]
    lines = LIST.read_text().splitlines()
    page = "\n".join(line for line in lines if not line.startswith("import "))
    shown = "tree(rows).map((row) => [row.session, row.depth])"
    script = (
        f"{GROUP_BY}{page}\nconst rows = {json.dumps(rows)};\nconsole.log(JSON.stringify({shown}));"
    )
    command = [str(NODE), "--input-type=module", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(session, depth) for session, depth in json.loads(done.stdout)]


def test_helpers_follow_the_session_that_started_them_oldest_first() -> None:
    newest_first = [("d", "c"), ("c", "a"), ("z", ""), ("b", "a"), ("a", ""), ("lost", "gone")]
    assert tree(newest_first) == [("z", 0), ("a", 0), ("b", 1), ("c", 1), ("d", 2), ("lost", 0)]
    # A chain of helpers may be as long as the list.
    chain = [(f"s{number}", f"s{number - 1}" if number else "") for number in range(20_000)]
    assert tree(chain[::-1]) == [(session, depth) for depth, (session, _) in enumerate(chain)]

"""The list of the inspector's page, in Node.js: the order of sessions and of the helpers that they
started."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def evaluate(expression: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Returns the value of an expression over `rows` in the list's module."""
    page = "\n".join(
        line for line in LIST.read_text().splitlines() if not line.startswith("import ")
    )
    script = f"{GROUP_BY}{page}\nconst rows = {json.dumps(rows)};\nconsole.log(JSON.stringify({expression}));"
    command = [str(NODE), "--input-type=module", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def tree(parents: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    """Returns the session and depth of each row. `parents`: sessions with their parents, the newest
    first."""
    rows = [{"session": session, "parent": parent} for session, parent in parents]
    shown = evaluate("tree(rows).map((row) => [row.session, row.depth])", rows)
    return [(session, depth) for session, depth in shown]


def test_helpers_follow_the_session_that_started_them_oldest_first() -> None:
    newest_first = [("d", "c"), ("c", "a"), ("z", ""), ("b", "a"), ("a", ""), ("lost", "gone")]
    assert tree(newest_first) == [("z", 0), ("a", 0), ("b", 1), ("c", 1), ("d", 2), ("lost", 0)]


def test_chain_of_helpers_may_be_as_long_as_the_list() -> None:
    chain = [(f"s{number}", f"s{number - 1}" if number else "") for number in range(20_000)]
    assert tree(chain[::-1]) == [(session, depth) for depth, (session, _) in enumerate(chain)]

"""Reduced inputs that the fuzzer found: the properties hold, and the blocks are the expected
ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from fuzz.cases import from_vector
from fuzz.properties import Block, check

FINDINGS = [
    json.loads(line)
    for file in sorted((Path(__file__).parent / "findings").glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("finding", FINDINGS, ids=[f"{f['family']}-{f['case']}" for f in FINDINGS])
def test_finding_stays_fixed(finding: dict[str, Any]) -> None:
    blocks = [as_vector(block) for block in check(from_vector(finding))]
    if "expected" in finding:
        assert blocks == finding["expected"], finding["why"]


def as_vector(block: Block) -> dict[str, Any]:
    """A block as vectors have it."""
    if block.kind != "tool_use":
        return {"type": block.kind, "text": block.text}
    if not block.complete:
        return {"type": block.kind, "name": block.name, "input": None, "complete": False}
    return {"type": block.kind, "name": block.name, "input": json.loads(block.text)}

"""Reduced inputs that the fuzzer found: the properties hold, and the blocks are the expected
ones."""

import json
from pathlib import Path
from typing import Any

from fuzz.cases import from_vector
from fuzz.properties import check
from tests.kit.every import for_each
from tests.kit.parser_cases import Block

FINDINGS: list[dict[str, Any]] = [
    json.loads(line)
    for file in sorted((Path(__file__).parent / "findings").glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


@for_each(FINDINGS, name=lambda finding: f"{finding['family']}-{finding['case']}")
def test_finding_stays_fixed(finding: dict[str, Any]) -> None:
    blocks = [as_vector(block) for block in check(from_vector(finding))]
    if "expected" in finding:
        assert blocks == finding["expected"], finding["why"]


def as_vector(block: Block) -> dict[str, Any]:
    """A block as vectors have it."""
    if block["type"] != "tool_use":
        return {"type": block["type"], "text": block["text"]}
    call = {"type": block["type"], "name": block["name"]}
    if not block["complete"]:
        return {**call, "input": None, "complete": False}
    return {**call, "input": block["input"]}

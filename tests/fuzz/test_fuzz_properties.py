"""What fuzzing of the parsers once found, and every vector, have every property of `fuzz`."""

import json
from pathlib import Path
from typing import Any

from fuzz.properties import check
from tests.kit.every import for_each
from tests.kit.parser_cases import case_name, problems, vectors

FINDINGS: list[dict[str, Any]] = [
    json.loads(line)
    for file in sorted((Path(__file__).parent / "findings").glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


@for_each(FINDINGS, name=case_name)
def test_finding_stays_fixed(finding: dict[str, Any]) -> None:
    blocks = check(finding)
    assert "expected" not in finding or problems(finding, blocks) is None, finding["why"]


@for_each(vectors(), parts=6, name=case_name)
def test_every_property_holds_for_every_vector(case: dict[str, Any]) -> None:
    check(case)

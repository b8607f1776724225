"""What fuzzing of the parsers once found has every property of `fuzz`."""

import json
from pathlib import Path
from typing import Any

from fuzz.properties import check
from tests.kit.every import for_each
from tests.kit.parser_cases import case_name, problems

FINDINGS: list[dict[str, Any]] = [
    json.loads(line)
    for file in sorted((Path(__file__).parent / "findings").glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


@for_each(FINDINGS, name=case_name)
def test_finding_stays_fixed(finding: dict[str, Any]) -> None:
    blocks = check(finding)
    assert "expected" not in finding or problems(finding, blocks) is None, finding["why"]

"""The fuzzer's targets for a short run from fixed seeds, and what they once found."""

import json
from pathlib import Path
from random import Random
from typing import Any

from fuzz.cases import FAMILIES, decode, from_vector
from fuzz.properties import check
from fuzz.targets import bodies, parser
from tests.kit.every import for_each
from tests.kit.examples import examples
from tests.kit.parser_cases import problems

SEEDS = dict(parser.seeds())
FINDINGS: list[dict[str, Any]] = [
    json.loads(line)
    for file in sorted((Path(__file__).parent / "findings").glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


@for_each(FINDINGS, name=lambda finding: f"{finding['family']}-{finding['case']}")
def test_finding_stays_fixed(finding: dict[str, Any]) -> None:
    blocks = check(from_vector(finding))
    assert "expected" not in finding or problems(finding, blocks) is None, finding["why"]


@for_each(list(SEEDS), parts=6)
def test_every_property_holds_for_every_vector(name: str) -> None:
    parser.one(SEEDS[name])


@for_each(FAMILIES, parts=10)
def test_every_property_holds_for_mutations(family: str) -> None:
    chance = Random(family)
    empty = bytes([FAMILIES.index(family)]) + b"\0\1\0\0\0text"
    pool = [data for data in SEEDS.values() if decode(data).family == family] or [empty]
    for _ in range(examples(40)):
        data = parser.mutate(chance.choice(pool), chance)
        pool.append(data)
        try:
            parser.one(data)
        except Exception as error:
            error.add_note(str(decode(data)))
            raise


def test_bodies_and_mutations_are_parsed_or_refused() -> None:
    chance = Random("bodies")
    pool = [data for _, data in bodies.seeds()]
    for data in pool:
        bodies.one(data)
    for _ in range(examples(1800)):
        pool.append(bodies.mutate(chance.choice(pool), chance))
        bodies.one(pool[-1])


HOSTED = (
    # Bytes that are not UTF-8 reach the reader of hosted results, because raw JSON is not
    # decoded before.
    b'{"type":"web_search_tool_result","content":[{"title":"\xc5"}]}',
    b'{"type":"mcp_tool_use","id":"a","name":"n","input":{"a":"\xff"}}',
    # Deeper than Python recurses, shallower than the JSON reader refuses.
    b'{"type":"web_search_tool_result","content":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"type":"web_search_tool_result","content":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
)


@for_each(HOSTED)
def test_hosted_results_are_parsed_or_refused(block: bytes) -> None:
    message = b'{"role":"user","content":[' + block + b"]}"
    bodies.one(b'\0{"model":"m","max_tokens":9,"messages":[' + message + b"]}")

"""The requests' target, from fixed seeds."""

from random import Random

import pytest

from fuzz.targets import bodies
from tests.kit.every import for_each


@pytest.mark.parametrize("seed", range(3))
def test_seeds_and_mutations_pass(seed: int) -> None:
    chance = Random(f"{bodies.__name__} {seed}")
    pool = [data for _, data in bodies.seeds()]
    for data in pool:
        bodies.one(data)
    for _ in range(600):
        data = bodies.mutate(chance.choice(pool), chance)
        bodies.one(data)
        pool.append(data)


HOSTED = (
    # Bytes that are not UTF-8 reach the reader of hosted results, because raw JSON is not
    # decoded before.
    b'{"type":"web_search_tool_result","content":"\xff"}',
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

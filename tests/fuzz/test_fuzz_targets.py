"""The other targets, from fixed seeds."""

from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from fuzz.__main__ import write_seeds
from fuzz.targets import bodies, detokenizer, stop
from tests.kit.every import for_each


@pytest.mark.parametrize(
    ("target", "seed"), [(detokenizer, 0), (stop, 0), (bodies, 0), (bodies, 1), (bodies, 2)]
)
def test_seeds_and_mutations_pass(target: ModuleType, seed: int) -> None:
    chance = Random(f"{target.__name__} {seed}")
    pool = [data for _, data in target.seeds()]
    for data in pool:
        target.one(data)
    for _ in range(600):
        data = target.mutate(chance.choice(pool), chance)
        target.one(data)
        pool.append(data)


def test_seeds_are_files(tmp_path: Path) -> None:
    count = write_seeds(stop, tmp_path / "stop")
    assert len(list((tmp_path / "stop").iterdir())) == count > 0


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


@pytest.mark.parametrize(
    ("stops", "text", "shown"),
    [(["abc", "b"], "abc", ("a", "b")), (["aab", "aa"], "aab", ("", "aa"))],
)
def test_stop_string_that_ends_first_counts(
    stops: list[str], text: str, shown: tuple[str, str]
) -> None:
    assert stop.reference(text, stops) == shown

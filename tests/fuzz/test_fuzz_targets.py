"""The other targets, from fixed seeds."""

from random import Random
from types import ModuleType

import pytest

from fuzz.targets import chat, detokenizer, messages, responses, stop


@pytest.mark.parametrize("target", [detokenizer, stop, messages, chat, responses])
def test_seeds_and_mutations_pass(target: ModuleType) -> None:
    chance = Random(target.__name__)
    pool = [data for _, data in target.seeds()]
    for data in pool:
        target.one(data)
    for _ in range(600):
        data = target.mutate(chance.choice(pool), chance)
        target.one(data)
        pool.append(data)


def body(block: bytes) -> bytes:
    return b'\0{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[' + block + b"]}]}"


@pytest.mark.parametrize(
    "block",
    [
        # Bytes that are not UTF-8 reach the reader of hosted results, because raw JSON is not
        # decoded before.
        b'{"type":"web_search_tool_result","content":"\xff"}',
        b'{"type":"web_search_tool_result","content":[{"title":"\xc5"}]}',
        b'{"type":"mcp_tool_use","id":"a","name":"n","input":{"a":"\xff"}}',
        # Deeper than Python recurses, shallower than the JSON reader refuses.
        b'{"type":"web_search_tool_result","content":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"type":"web_search_tool_result","content":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    ],
)
def test_hosted_results_are_parsed_or_refused(block: bytes) -> None:
    messages.one(body(block))


@pytest.mark.parametrize(
    ("stops", "text", "shown", "hit"),
    [
        (["abc", "b"], "abc", "a", "b"),
        (["aab", "aa"], "aab", "", "aa"),
        (["</", "</done>"], "x</done>", "x", "</"),
    ],
)
def test_stop_string_inside_another_is_found_in_every_split(
    stops: list[str], text: str, shown: str, hit: str
) -> None:
    assert stop.reference(text, stops) == (shown, hit)
    stop.one(bytes([len(stops) - 1, 0]) + "\0".join([*stops, text]).encode())

"""A change of an answer is found; what is random is not one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.compare.differences import compare
from tests.compare.normal import Renamer, stream_events
from tests.compare.recording import Exchange

JSON = [("Content-Type", "application/json")]
STREAM = [("Content-Type", "text/event-stream")]
BODY = '{"id":"a","usage":{"n":1,"m":[2]}}'
DOCUMENT = Exchange("case-1.0", "chat agent", "POST / {}", 200, JSON, BODY)
SSE = 'event: a\ndata: {"type":"a","x":1}\n\ndata: [DONE]\n\n'
A, B = "2b5f6b282c5f8ae9d1b1aa76", "980bd0b91ec3ee91bcbcde87"


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        ({}, []),
        ({"status": 400}, ["status"]),
        ({"headers": [*JSON, ("retry-after", "1")]}, ["headers.retry-after"]),
        ({"answer": '{"id":"b","usage":{"n":1,"m":[2,3]}}'}, ["body.id", "body.usage.m.1"]),
        ({"answer": '{"id":"a","usage":{"m":[2],"n":1}}'}, ["body.text"]),
        ({"request": 'POST / {"x":1}'}, ["request.text"]),
    ],
)
def test_change_of_a_document_is_found(change: dict[str, Any], paths: list[str]) -> None:
    found = compare([DOCUMENT], [replace(DOCUMENT, **change)])
    assert [one.path for one in found] == paths


def test_changes_of_a_stream_and_missing_answers_are_found() -> None:
    events = replace(DOCUMENT, headers=STREAM, answer=SSE)
    changed = SSE.replace('"x":1', '"x":2').replace("data: [", 'event: b\ndata: {"y":1}\n\ndata: [')
    found = compare([events], [replace(events, answer=changed)])
    assert [one.path for one in found] == ["events.a.x", "events.b"]
    found = compare([DOCUMENT], [])
    assert [one.now for one in found] == ["(missing)"]


def test_ids_times_seals_and_the_state_of_the_cache_are_replaced() -> None:
    seal = "AgAVdgsUy2VWa_ACuiFUvkh9P-V0y7JXEbzw-IuEXV_y07OKvh-DNm_bDF8GZv_ddpElkyPg=="
    text = f'{{"id":"msg_{A}","request_id":"req_{A}","item":"rs_{B}000","created":1795673833,'
    stable = '{"id":"msg_#1","request_id":"req_#1","item":"rs_#2000","created":"<time>",'
    more = f'"signature":"{seal}","max_tokens":1795673833}}'
    assert Renamer().text(text + more) == stable + '"signature":"<sealed>","max_tokens":1795673833}'
    usage = '"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d'
    assert Renamer().text(usage % (5, 240)) == usage % (245, 240)


def chunk(choice: int, delta: object, **more: object) -> str:
    choices = [{"index": choice, "delta": delta, **more, "finish_reason": None}]
    document = json.dumps({"id": f"chatcmpl-{A}", "choices": choices}, separators=(",", ":"))
    return f"data: {document}\n\n"


def test_other_cuts_of_deltas_are_equal_and_other_deltas_are_not() -> None:
    cut = [
        chunk(0, {}, token_ids=[1]),
        chunk(0, {"content": "a"}),
        chunk(1, {"content": "x"}),
        chunk(0, {}, token_ids=[2]),
        chunk(0, {"content": "b"}),
    ]
    whole = [
        chunk(0, {}, token_ids=[1, 2]),
        chunk(0, {"content": "ab"}),
        chunk(1, {"content": "x"}),
    ]
    assert stream_events("".join(cut), Renamer()) == stream_events("".join(whole), Renamer())
    other = chunk(0, {"content": "a"}) + chunk(0, {"reasoning": "b"})
    assert len(stream_events(other, Renamer())) == 2

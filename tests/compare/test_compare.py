"""A change of an answer is found."""

from dataclasses import replace
from typing import Any

import pytest

from tests.compare.differences import compare
from tests.compare.recording import Exchange

JSON = [("Content-Type", "application/json")]
STREAM = [("Content-Type", "text/event-stream")]
BODY = '{"id":"a","usage":{"n":1,"m":[2]}}'
DOCUMENT = Exchange("case-1.0", "chat agent", "POST / {}", 200, JSON, BODY)
SSE = 'event: a\ndata: {"type":"a","x":1}\n\ndata: [DONE]\n\n'


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

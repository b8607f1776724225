"""A change of an answer is found, and no answer depends on other sessions."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.compare.differences import compare
from tests.compare.recording import Exchange, Request
from tests.compare.sessions import drawn

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


async def test_sessions_store_and_name_items_of_their_own() -> None:
    ids: Counter[str] = Counter()
    for _, _, run in drawn(1, 600):
        named: set[str] = set()

        async def send(request: Request, named: set[str] = named) -> Exchange:
            if request.path == "/v1/responses":
                named |= set(re.findall(r'"id": "(.+?)"', request.body.decode()))
            return replace(DOCUMENT, status=400)

        await run(send)
        ids.update(named)
    assert len(ids) > 100
    assert [id for id, sessions in ids.items() if sessions > 1] == []

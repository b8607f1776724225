"""A change of an answer or of a bus message is found, unless it is declared."""

import base64
import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.compare.contents import options
from tests.compare.differences import Declared, Difference, compare, summary
from tests.compare.exchange import Answer, BusSession, BusTurn, Exchange, Request, save
from tests.compare.sessions import drawn

JSON = [("Content-Type", "application/json")]
STREAM = [("Content-Type", "text/event-stream")]
DOCUMENT = Exchange(
    "case-1.0",
    "chat agent",
    "POST",
    "/v1/chat/completions",
    "{}",
    200,
    JSON,
    '{"id":"a","usage":{"n":1,"m":[2]}}',
)
EVENTS = replace(
    DOCUMENT,
    id="case-1.1",
    headers=STREAM,
    answer='event: a\ndata: {"type":"a","x":1}\n\ndata: [DONE]\n\n',
)


def prompt(*ids: int) -> str:
    return base64.b64encode(array("I", ids).tobytes()).decode()


def bus(
    ids: str, turn: str = '{"conversation":{"turns":[{"role":"user"}],"model":"m"}}'
) -> list[BusSession]:
    return [BusSession("case-1", [BusTurn([turn], [('{"turn":"t","prompt":""}', ids)], [])])]


def found(
    tmp_path: Path,
    now: list[Exchange],
    bus_now: list[BusSession] | None = None,
    declared: Declared | None = None,
    base: list[Exchange] | None = None,
) -> list[Difference]:
    sides = (
        ("base", base or [DOCUMENT, EVENTS], bus(prompt(1, 2))),
        ("now", now, bus_now or bus(prompt(1, 2))),
    )
    for name, rows, sessions in sides:
        (tmp_path / name).mkdir(exist_ok=True)
        save(tmp_path / name / "http.jsonl.gz", rows)
        save(tmp_path / name / "bus.jsonl.gz", sessions)
    return compare(tmp_path / "base", tmp_path / "now", declared or Declared())[1]


def test_equal_recordings_have_no_differences(tmp_path: Path) -> None:
    assert found(tmp_path, [DOCUMENT, EVENTS]) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"status": 400}, "status"),
        ({"headers": [*JSON, ("retry-after", "1")]}, "headers.retry-after"),
        ({"answer": '{"id":"b","usage":{"n":1,"m":[2]}}'}, "body.id"),
        ({"answer": '{"id":"a","usage":{"m":[2],"n":1}}'}, "body.usage.order"),
        ({"answer": '{"id":"a","usage":{"n":1,"m":[2,3]}}'}, "body.usage.m"),
        ({"answer": '{"id":"a","usage":{"n":true,"m":[2]}}'}, "body.usage.n"),
        ({"answer": '{"id": "a","usage":{"n":1,"m":[2]}}'}, "body.text"),
        ({"answer": "not json"}, "body.text"),
        ({"request": '{"x":1}'}, "request.text"),
    ],
)  # fmt: skip
def test_change_of_a_document_is_found(tmp_path: Path, change: dict[str, Any], path: str) -> None:
    assert [one.path for one in found(tmp_path, [replace(DOCUMENT, **change), EVENTS])] == [path]


@pytest.mark.parametrize("name", ["cached_tokens", "cache_read_input_tokens"])
def test_state_of_the_cache_is_not_a_difference(tmp_path: Path, name: str) -> None:
    def usage(cached: object) -> list[Exchange]:
        return [replace(DOCUMENT, answer=f'{{"usage":{{"{name}":{cached},"n":1}}}}'), EVENTS]

    assert found(tmp_path, usage(90_000), base=usage(0)) == []
    assert [one.path for one in found(tmp_path, usage("null"), base=usage(5))] == [
        f"body.usage.{name}"
    ]


def test_ids_in_a_path_are_renamed(tmp_path: Path) -> None:
    paths = [f"/v1/responses/resp_{digit * 24}" for digit in "ab"]
    base, now = ([replace(DOCUMENT, path=path), EVENTS] for path in paths)
    assert found(tmp_path, now, base=base) == []


def test_changes_of_a_stream_are_found(tmp_path: Path) -> None:
    changed = EVENTS.answer.replace('"x":1', '"x":2').replace(
        "data: [DONE]", 'event: b\ndata: {"y":1}\n\ndata: [DONE]'
    )
    paths = {one.path for one in found(tmp_path, [DOCUMENT, replace(EVENTS, answer=changed)])}
    assert paths == {"events.a.x", "events.b"}


def test_missing_request_is_found(tmp_path: Path) -> None:
    assert [one.now for one in found(tmp_path, [DOCUMENT])] == ["(missing)"]


def test_extra_token_of_a_prompt_is_found(tmp_path: Path) -> None:
    (one,) = found(tmp_path, [DOCUMENT, EVENTS], bus(prompt(1, 2, 3)))
    assert (one.label, one.path, one.now) == ("bus", "generate.0.prompt", "3 numbers, from 2: [3]")


def test_only_declared_differences_are_left_out(tmp_path: Path) -> None:
    now = [replace(DOCUMENT, status=400, answer='{"id":"b","usage":{"n":1,"m":[2]}}'), EVENTS]
    declared = Declared([{"label": "chat *", "path": "body.*", "now": "b", "reason": "so"}])
    assert [one.path for one in found(tmp_path, now, declared=declared)] == ["status"]
    assert declared.used == {0}


def test_renamed_field_of_the_bus_is_not_a_difference(tmp_path: Path) -> None:
    now = bus(prompt(1, 2), '{"conversation":{"messages":[{"role":"user"}],"model":"m"}}')
    assert found(tmp_path, [DOCUMENT, EVENTS], now)
    renamed = Declared(
        renamed=[{"from": "turn.conversation.turns", "to": "messages", "reason": "one name"}]
    )
    assert found(tmp_path, [DOCUMENT, EVENTS], now, renamed) == []


def test_declaration_needs_a_reason(tmp_path: Path) -> None:
    (tmp_path / "declared.toml").write_text('[[declared]]\npath = "body"\n')
    with pytest.raises(ValueError, match="reason"):
        Declared.load(tmp_path / "declared.toml")


def test_summary_shows_each_place_once() -> None:
    text = summary(
        {"chat agent": [2, 1]},
        [Difference("chat agent", f"case-{n}", f"body.a.{n}", "x", "y") for n in range(9)],
        5,
    )
    assert "9 times" in text
    assert text.count("base:") == 1


async def test_seed_decides_the_requests_and_leaves_the_table_unchanged(tmp_path: Path) -> None:
    async def requests(seed: int) -> list[Request]:
        sent: list[Request] = []

        async def send(request: Request) -> Answer:
            sent.append(request)
            return Answer(404, [], b"")

        for _, _, count, run in drawn(seed, 120, tmp_path):
            before = len(sent)
            await run(send)
            assert len(sent) - before == count
        return sent

    table = json.dumps(options())
    first = await requests(1)
    assert first == await requests(1) != await requests(2)
    assert len(first) == 120
    assert json.dumps(options()) == table

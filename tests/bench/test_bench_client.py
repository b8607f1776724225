"""The measuring client: bytes with times become counts, latencies or errors."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import capacity
from bench.apis import APIS
from bench.client import Client
from bench.exchange import Exchange
from bench.http1 import ResponseParser
from bench.measuring import Site
from tests.bench.stub import LAST_CHUNK, OPENING, STREAM_HEAD, chunk, closing, delta, send, serve

API = APIS["messages"]
MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
IN_CHUNKS = HEAD + b"transfer-encoding: chunked\r\n\r\n"
CHUNKED = IN_CHUNKS + b"5\r\nhello\r\n7;x=1\r\n, \r\n\r\nw\r\n4\r\norld\r\n0\r\nx-end: 1\r\n\r\n"
TEXT = b"hello, \r\n\r\nworld"
COUNTED = HEAD + b"content-length: 16\r\n\r\n" + TEXT


@given(st.integers(0, len(CHUNKED)), st.integers(0, 200), st.sampled_from([CHUNKED, COUNTED]))
def test_every_chunking_gives_the_same_body(start: int, size: int, response: bytes) -> None:
    parser = ResponseParser()
    bounds = (slice(0, start), slice(start, start + size), slice(start + size, None))
    assert b"".join(parser.feed(response[some]) for some in bounds) == TEXT
    assert (parser.status, parser.complete, parser.keep_alive) == (200, True, True)
    assert parser.headers[b"content-type"] == b"text/event-stream"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_latencies_count_from_the_planned_time_however_the_stream_is_cut(size: int) -> None:
    made = Exchange(2 * MS, keep=True)
    made.status = 200
    parts = {5: OPENING, 7: delta("a"), 17: delta("b") + delta("c"), 20: closing(3)}
    for time_ms, data in parts.items():
        for at in range(0, len(data), size):
            made.body(time_ms * MS, data[at : at + size], API.output)
    made.close(100 * MS, API)
    assert (made.finished, made.events, made.outputs, made.ttft_ms) == (True, 8, 3, 5)
    assert list(made.event_gaps_ms()) == [10, 0]
    tokens = made.tokens(API)
    assert tokens is not None
    assert (tokens.prompt, tokens.output, tokens.cached) == (10, 3, 3)
    assert [time // MS for time, _ in made.each()] == [5, 5, 7, 17, 17, 20, 20, 20]


@pytest.mark.parametrize(
    ("data", "then_close", "error"),
    [
        (b"HTTP/1.1 429 Slow\r\ncontent-length: 4\r\n\r\nslow", False, "status 429: slow"),
        (b"", True, "closed without an answer"),
        (STREAM_HEAD + chunk(OPENING + delta("a")), True, "in mid-response (after 3 events)"),
        (STREAM_HEAD + chunk(OPENING) + LAST_CHUNK, False, "without event: message_stop"),
    ],
)
async def test_bad_answer_is_reported_and_the_next_request_is_served(
    data: bytes, then_close: bool, error: str
) -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        if body == b"{}":
            await send(writer, [OPENING, delta("a"), closing(1)])
            return
        writer.write(data)
        if then_close:
            writer.close()

    server, target = await serve(answer)
    client = Client(target, API)
    bad = await client.exchange(b"bad")
    good = await client.exchange(b"{}")
    client.close()
    server.close()
    assert error in (bad.error or "")
    assert not bad.finished
    assert (good.error, good.outputs) == (None, 1)


async def test_sessions_are_played_up_to_the_turn_and_continued_in_each_case() -> None:
    lengths: list[int] = []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        lengths.append(len(json.loads(body)["messages"]))
        block = {"type": "tool_use", "id": f"toolu_{len(lengths)}", "name": "f", "input": {}}
        call = {"type": "input_json_delta", "partial_json": "{}"}
        documents = [
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": call},
            {"type": "content_block_stop", "index": 0},
        ]
        line = b"event: content_block_delta\ndata: %b\n\n"
        await send(writer, [*(line % json.dumps(one).encode() for one in documents), closing(3)])

    server, target = await serve(answer)
    site = Site(target=target, api=API, model="m", seed=7)
    rows = [row async for row in capacity.turns(site, 3, ((1, 1), (2, 3)), 2, 60)]
    server.close()
    assert [(row.case.prompt, row.requests, row.failed) for row in rows] == [
        ("session at turn 3", 2, 0),
        ("session at turn 3", 6, 0),
    ]
    played, first, second = lengths[:6], lengths[6:8], lengths[8:]
    assert sorted(played) == [1, 1, 1, 3, 3, 3]
    assert first == [5, 7]
    assert sorted(second) == [5, 5, 5, 7, 7, 7]

"""The measuring client: bytes with times become counts, latencies or errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.apis import APIS
from bench.client import Client, Mode, Target
from bench.exchange import Exchange
from bench.http1 import BadResponse, ResponseParser
from bench.loops import closed_loop
from tests.bench.stub import (
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    chunk,
    closing,
    delta,
    opening,
    port_of,
    send,
    serve,
    steady,
)

API = APIS["messages"]
MS = 1_000_000
Start = Callable[..., Awaitable[Client]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
IN_CHUNKS = HEAD + b"transfer-encoding: chunked\r\n\r\n"
CHUNKED = IN_CHUNKS + b"5\r\nhello\r\n7;x=1\r\n, \r\n\r\nw\r\n4\r\norld\r\n0\r\nx-end: 1\r\n\r\n"
TEXT = b"hello, \r\n\r\nworld"
COUNTED = HEAD + b"content-length: 16\r\n\r\n" + TEXT


def read(pieces: list[bytes]) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    return parser, b"".join(parser.feed(piece) for piece in pieces)


@given(st.lists(st.integers(0, 500), max_size=8), st.sampled_from([CHUNKED, COUNTED]))
def test_every_chunking_gives_the_same_body(places: list[int], response: bytes) -> None:
    bounds = [0, *sorted(place % len(response) for place in places), len(response)]
    parser, body = read([response[start:end] for start, end in pairwise(bounds)])
    assert (parser.status, parser.complete, parser.keep_alive) == (200, True, True)
    assert body == TEXT
    assert parser.headers[b"content-type"] == b"text/event-stream"


def test_response_that_is_cut_off_is_an_error() -> None:
    for size in range(len(CHUNKED)):
        parser, _ = read([CHUNKED[:size]])
        with pytest.raises(BadResponse, match="closed"):
            parser.end()


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-x\r\n\r\n",
        HEAD + b"content-length: x\r\n\r\n",
        HEAD + b"content-length: 2\r\n\r\nabc",
        IN_CHUNKS + b"zz\r\n",
        IN_CHUNKS + b"2\r\nabc\r\n",
        CHUNKED + b"x",
    ],
)
def test_other_bytes_are_not_a_response(response: bytes) -> None:
    with pytest.raises(BadResponse):
        read([response])


def exchange(*reads: tuple[int, bytes], due_ms: int = 0) -> Exchange:
    """An exchange with these reads, each at its ms."""
    made = Exchange(due_ms * MS, keep=True)
    made.status = 200
    for time_ms, data in reads:
        made.body(time_ms * MS, data, API.output)
    made.close(100 * MS, API)
    return made


def test_latencies_count_from_the_planned_time() -> None:
    later = delta("b") + delta("c")
    one = exchange((5, opening()), (7, delta("a")), (17, later), (20, closing(3)), due_ms=2)
    assert (one.finished, one.events, one.outputs, one.ttft_ms) == (True, 8, 3, 5)
    assert list(one.gaps_ms()) == [10]
    assert list(one.event_gaps_ms()) == [10, 0]
    tokens = one.tokens(API)
    assert tokens is not None
    assert (tokens.prompt, tokens.output, tokens.cached) == (10, 3, 3)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_any_cut_gives_the_same_events(line_end: bytes) -> None:
    stream = opening() + delta("a") + delta("b") + closing(2)
    stream = stream.replace(b"\n", line_end)
    whole = exchange((1, stream))
    for size in range(1, 40):
        cut = exchange(*((1, stream[at : at + size]) for at in range(0, len(stream), size)))
        assert (cut.finished, cut.error) == (True, None)
        assert (cut.events, cut.outputs, cut.size) == (7, 2, len(stream))
        assert [event for _, event in cut.each()] == [event for _, event in whole.each()]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """A client of a server that answers in the given way."""
    opened: list[tuple[asyncio.Server, Client]] = []

    async def begin(answer: Answer, mode: Mode = "keepalive", timeout_s: float = 20.0) -> Client:
        server = await serve(answer)
        client = Client(Target("127.0.0.1", port_of(server)), API, mode, timeout_s=timeout_s)
        opened.append((server, client))
        return client

    yield begin
    for server, client in opened:
        client.close()
        server.close()


def raw(data: bytes, *, then_close: bool) -> Answer:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            writer.close()

    return answer


@pytest.mark.parametrize(
    ("data", "then_close", "error"),
    [
        (b"HTTP/1.1 429 Slow\r\ncontent-length: 4\r\n\r\nslow", False, "status 429: slow"),
        (b"", True, "closed without an answer"),
        (STREAM_HEAD + chunk(opening() + delta("a")), True, "in mid-response (after 3 events)"),
        (STREAM_HEAD + chunk(opening()) + LAST_CHUNK, False, "without event: message_stop"),
    ],
)
async def test_bad_answer_is_reported_and_the_next_request_is_served(
    start: Start, data: bytes, then_close: bool, error: str
) -> None:
    answers = [raw(data, then_close=then_close), steady(2, 1)]

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        await answers.pop(0)(body, writer)

    client = await start(answer)
    bad = await client.exchange(b"{}")
    assert error in (bad.error or "")
    assert not bad.finished
    good = await client.exchange(b"{}")
    assert (good.error, good.outputs) == (None, 2)


async def test_closed_loop_has_one_request_for_each_client_at_a_time(start: Start) -> None:
    running, most = 0, 0
    bodies: list[bytes] = []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        bodies.append(body)
        await asyncio.sleep(0)
        running -= 1
        await send(writer, [opening(), delta("a"), closing(1)])

    client = await start(answer)
    done = await closed_loop(client, lambda number: b"%d" % number, clients=4, each=5)
    assert all(one.finished for one in done)
    assert len(set(bodies)) == len(bodies) == 20
    assert 1 <= most <= 4
    assert await closed_loop(client, lambda number: b"", clients=4, each=5, limit_s=0) == []

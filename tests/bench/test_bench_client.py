"""The measuring client: bytes with times become counts, latencies or errors."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.apis import APIS
from bench.client import MODES, Client, Mode, Target
from bench.exchange import Exchange
from bench.http1 import BadResponse, ResponseParser
from bench.loops import closed_loop
from bench.stub import (
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
from tests.kit.waiting import eventually

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


def test_response_is_complete_with_its_last_byte() -> None:
    parser = ResponseParser()
    for at in range(len(CHUNKED)):
        assert not parser.complete
        parser.feed(CHUNKED[at : at + 1])
    assert parser.complete
    parser.reset()
    assert parser.feed(COUNTED) == TEXT

    parser, body = read([HEAD + b"\r\nabc", b"def"])
    assert not parser.complete
    parser.end()
    assert (parser.complete, body) == (True, b"abcdef")


def test_interim_responses_and_empty_bodies() -> None:
    parser, body = read([b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED])
    assert (parser.status, body) == (200, TEXT)
    parser, body = read([b"HTTP/1.1 503 Busy\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n"])
    assert (parser.status, body, parser.complete, parser.keep_alive) == (503, b"", True, False)


def test_response_that_is_cut_off_is_an_error() -> None:
    for size in range(len(CHUNKED)):
        parser, _ = read([CHUNKED[:size]])
        with pytest.raises(BadResponse, match="closed"):
            parser.end()


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        HEAD + b"content-length: x\r\n\r\n",
        HEAD + b"content-length: 2\r\n\r\nabc",
        IN_CHUNKS + b"zz\r\n",
        IN_CHUNKS + b"-2\r\n",
        IN_CHUNKS + b"2\r\nabc\r\n",
        IN_CHUNKS + b"1" * 5000,
        CHUNKED + b"x",
        b"x" * 70_000,
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


def test_time_of_an_event_is_that_of_the_read_which_completed_it() -> None:
    event = delta("a")
    one = exchange((1, opening() + event[:9]), (8, event[9:-1]), (9, event[-1:]))
    assert one.reads == [(9 * MS, 1)]
    assert one.each()[-1] == (9 * MS, event.strip())


def test_first_error_stays() -> None:
    one = Exchange(0)
    one.body(1, opening(), API.output)
    one.fail(2, "reset")
    one.fail(3, "again")
    one.close(4, API)
    assert one.error is not None
    assert one.error.startswith("reset (after 2 events)")
    assert not one.finished


def test_a_call_is_done_with_its_own_block() -> None:
    start = b'event: content_block_start\ndata: {"index":%d,"content_block":{"type":"%s"}}'
    stop = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}'
    events = [
        (1, start % (0, b"text")),
        (2, stop % 0),
        (3, start % (1, b"tool_use")),
        (4, stop % 1),
        (5, start % (2, b"tool_use")),
        (6, stop % 2),
    ]
    assert API.call_done(events) == 4
    assert API.call_done(events[:3]) is None


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


@pytest.mark.parametrize("mode", MODES)
async def test_client_sends_whole_requests_and_counts_answers(start: Start, mode: Mode) -> None:
    bodies: list[bytes] = []
    peers: set[object] = set()
    canned = steady(40, 3)

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        bodies.append(body)
        peers.add(writer.get_extra_info("peername"))
        await canned(body, writer)

    client, body = await start(answer, mode), bytes(range(256)) * 2000
    for _ in range(2):
        one = await client.exchange(body)
        assert (one.error, one.finished, one.outputs, one.events) == (None, True, 40, 45)
        assert one.size == len(opening() + delta("word ") * 40 + closing(40))
        times = [one.due, one.sent, one.reads[0][0], one.reads[-1][0], one.ended]
        assert times == sorted(times)
    assert bodies == [body, body]
    assert len(peers) == (1 if mode == "keepalive" else 2)


def raw(data: bytes, *, then_close: bool) -> Answer:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            writer.close()

    return answer


REFUSED = b'HTTP/1.1 429 Too Many\r\ncontent-length: 11\r\n\r\n{"slow":1}\n'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\nlost"
BROKEN = b'event: error\ndata: {"type":"error","error":{"message":"broken"}}\n\n'


@pytest.mark.parametrize(
    ("data", "then_close", "error"),
    [
        (REFUSED, False, 'status 429: {"slow":1}'),
        (PLAIN, False, "no event stream: lost"),
        (b"", True, "closed without an answer"),
        (b"nonsense\r\n\r\n", False, "not an HTTP/1.1 status line"),
        (STREAM_HEAD + chunk(opening() + delta("a")), True, "in mid-response (after 3 events)"),
        (STREAM_HEAD + chunk(opening()) + LAST_CHUNK, False, "without event: message_stop"),
        (STREAM_HEAD + chunk(opening() + BROKEN) + LAST_CHUNK, False, "broken"),
        (STREAM_HEAD + chunk(closing(0) + b"event: m") + LAST_CHUNK, False, "within an event"),
        (STREAM_HEAD + b"oops\r\n", False, "not a length"),
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


async def test_silence_and_a_closed_port_are_errors(start: Start) -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(opening()))
        await asyncio.Event().wait()

    client = await start(answer, timeout_s=0.2)
    one = await client.exchange(b"{}")
    assert (one.error or "").startswith("no end within 0.2 s")

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        client = Client(Target("127.0.0.1", probe.getsockname()[1]), API)
        one = await client.exchange(b"{}")
    assert "ConnectionRefusedError" in (one.error or "")


async def test_idle_connection_that_the_server_closes_costs_no_request(start: Start) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await send(writer, [opening(), delta("a"), closing(1)])

    client = await start(answer)
    await client.exchange(b"{}")
    writers[0].close()
    await eventually(lambda: not client.idle)
    assert (await client.exchange(b"{}")).finished


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


def test_targets() -> None:
    assert Target.of("http://127.0.0.1:8000/base/") == Target("127.0.0.1", 8000, "/base")
    assert Target.of("http://host") == Target("host", 80)
    for url in ("https://host", "host:80", "http://"):
        with pytest.raises(ValueError, match="plain http"):
            Target.of(url)

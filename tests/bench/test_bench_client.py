"""The client against a real server: connections, pace, and servers that misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bench.apis import APIS
from bench.client import MODES, Client, Mode, Target
from bench.exchange import Exchange
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
Start = Callable[..., Awaitable[Client]]


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
async def test_counts_tokens_events_and_bytes(start: Start, mode: Mode) -> None:
    client = await start(steady(40, 3), mode)
    for _ in range(2):
        one = await client.exchange(b"{}")
        assert (one.error, one.finished, one.outputs, one.events) == (None, True, 40, 45)
        assert one.size == len(opening() + delta("word ") * 40 + closing(40))
        tokens = one.tokens(API)
        assert tokens is not None
        assert tokens.output == 40
        assert (
            one.due
            <= one.sent
            <= one.first_byte
            <= one.reads[0][0]
            <= one.reads[-1][0]
            <= one.ended
        )


async def test_keep_alive_has_one_connection_and_fresh_one_for_each(start: Start) -> None:
    peers: set[object] = set()

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        await send(writer, [opening(), delta("a"), closing(1)])

    for mode, connections in (("keepalive", 1), ("fresh", 3)):
        peers.clear()
        client = await start(answer, mode)
        for _ in range(3):
            assert (await client.exchange(b"{}")).finished
        assert len(peers) == connections


async def test_the_request_arrives_whole(start: Start) -> None:
    got: list[bytes] = []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        got.append(body)
        await send(writer, [opening(), delta("a"), closing(1)])

    body = bytes(range(256)) * 2000
    await (await start(answer)).exchange(body)
    assert got == [body]


async def test_each_output_has_the_time_at_which_it_came(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends the next word only when the client has the one before, so that no read
    contains two."""
    read = asyncio.Event()
    take = Exchange.body

    def body(exchange: Exchange, now: int, data: bytes, output: bytes) -> None:
        take(exchange, now, data, output)
        read.set()

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for event in (opening(), *[delta("a")] * 5):
            read.clear()
            writer.write(chunk(event))
            await read.wait()
        writer.write(chunk(closing(5)) + LAST_CHUNK)

    monkeypatch.setattr(Exchange, "body", body)
    one = await (await start(answer)).exchange(b"{}")
    assert [count for _, count in one.reads] == [1] * 5
    assert list(one.gaps_ms()) == list(one.event_gaps_ms())
    assert sum(one.gaps_ms()) == pytest.approx((one.reads[-1][0] - one.reads[0][0]) / 1e6)


def raw(data: bytes, *, then_close: bool) -> Answer:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            writer.close()

    return answer


REFUSED = b'HTTP/1.1 429 Too Many\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"slow":1}\n'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\nlost"


@pytest.mark.parametrize(
    ("data", "then_close", "error"),
    [
        (REFUSED, False, 'status 429: {"slow":1}'),
        (PLAIN, False, "no event stream: lost"),
        (b"", True, "closed without an answer"),
        (b"nonsense\r\n\r\n", False, "not an HTTP/1.1 status line"),
        (
            STREAM_HEAD + chunk(opening() + delta("a")),
            True,
            "closed in mid-response (after 3 events)",
        ),
        (STREAM_HEAD + chunk(opening()) + LAST_CHUNK, False, "without event: message_stop"),
        (STREAM_HEAD + b"oops\r\n", False, "not a length"),
    ],
)
async def test_a_bad_answer_is_reported_and_the_next_request_is_served(
    start: Start, data: bytes, then_close: bool, error: str
) -> None:
    answers = [raw(data, then_close=then_close), steady(2, 1)]

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        await answers.pop(0)(body, writer)

    client = await start(answer)
    bad, good = await client.exchange(b"{}"), await client.exchange(b"{}")
    assert error in (bad.error or "")
    assert not bad.finished
    assert (good.error, good.outputs) == (None, 2)


async def test_silence_ends_in_an_error(start: Start) -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(opening()))
        await asyncio.Event().wait()

    client = await start(answer, timeout_s=0.2)
    one = await client.exchange(b"{}")
    assert one.error == "no end within 0.2 s (after 2 events)"


async def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        client = Client(Target("127.0.0.1", probe.getsockname()[1]), API)
        one = await client.exchange(b"{}")
    assert "ConnectionRefusedError" in (one.error or "")
    assert one.sent == 0


async def test_a_server_that_closes_an_idle_connection_costs_no_request(start: Start) -> None:
    """Kept connections may be closed by the other side at any time; the next request must not fall
    into that."""
    writers: list[asyncio.StreamWriter] = []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await send(writer, [opening(), delta("a"), closing(1)])

    client = await start(answer)
    await client.exchange(b"{}")
    writers[0].close()
    await writers[0].wait_closed()
    await eventually(lambda: not client.idle)
    assert (await client.exchange(b"{}")).finished


def test_targets() -> None:
    assert Target.of("http://127.0.0.1:8000/base/") == Target("127.0.0.1", 8000, "/base")
    assert Target.of("http://host") == Target("host", 80)
    for url in ("https://host", "host:80", "http://"):
        with pytest.raises(ValueError, match="plain http"):
            Target.of(url)

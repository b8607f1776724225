"""Streams are flushed at the end of a tick: once each, all rendered before any is written, none
affected by another."""

import asyncio
import json
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
import structlog

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, Delta, Failed
from services.frontend.apis.messages.render import MessagesStream
from services.frontend.turns.flusher import Flusher
from services.frontend.turns.sinks import StreamSink
from tests.kit.events import Step, finish
from tests.kit.frontend import MODEL, QUESTION, STREAM, FakeGateway, serving
from tests.kit.raw_http import connected, post
from tests.kit.waiting import LIMIT_S, eventually

REQUEST = post(json.dumps(STREAM).encode())


class Stream(StreamSink):
    def __init__(self, name: str, said: list[str], broken: str = "") -> None:
        self.name, self.said, self.broken = name, said, broken

    def render(self, now: float) -> None:
        self._do("render")

    def send(self, now: float) -> None:
        self._do("send")

    def _do(self, what: str) -> None:
        if self.broken == what:
            raise ZeroDivisionError
        self.said.append(f"{what} {self.name}")


async def test_streams_of_a_tick_are_all_rendered_before_any_is_written() -> None:
    """The failure of one does not affect others."""
    said: list[str] = []
    flusher = Flusher(structlog.get_logger())
    for name, broken in (("a", ""), ("b", "render"), ("c", "send"), ("d", "")):
        flusher.add(Stream(name, said, broken))
    assert said == []
    with structlog.testing.capture_logs() as lines:
        await asyncio.sleep(0)
    assert said == ["render a", "render c", "render d", "send a", "send b", "send d"]
    assert [line["event"] for line in lines] == ["stream.render_failed", "stream.send_failed"]


def pieces(count: int) -> Step:
    """A batch of one tick, as of `count` frames."""
    return [BlockStart(0, "text"), *(Delta(0, at, "x") for at in range(count))]


async def test_deltas_of_a_tick_are_one_event() -> None:
    gate = asyncio.Event()
    gateway = FakeGateway(lambda: [pieces(1), gate])
    async with serving(gateway) as served, connected(served.port, REQUEST) as (reader, _):
        await reader.readuntil(b'"x"}}\n\n')
        sink = gateway.turns[0].sink
        sink.push([Delta(0, 1, "y")])
        sink.push([Delta(0, 2, "z"), Delta(0, 3, "\n")])
        sink.push([Delta(0, 4, '"'), finish(1)])
        rest = await reader.readuntil(b"\r\n0\r\n\r\n")
    assert b'"text":"yz\\n\\""}}\n\n' in rest
    assert rest.count(b"content_block_delta") == 2  # its name and its type


async def test_client_of_http_1_0_gets_bytes_without_chunks_until_the_connection_is_closed() -> (
    None
):
    gateway = FakeGateway(lambda: [pieces(2), [finish(1)]])
    old = REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0")
    async with serving(gateway) as served, connected(served.port, old) as (reader, _):
        answer = await reader.read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK")
    assert b"chunked" not in head.lower()
    assert b"keep-alive" not in head.lower()
    assert body.startswith(b"event: message_start\n")
    assert body.endswith(b'{"type":"message_stop"}\n\n')


async def test_stream_without_a_writable_error_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = MagicMock(side_effect=MemoryError)
    gate = asyncio.Event()
    gateway = FakeGateway(lambda: [pieces(2), gate, [finish(1)]])
    async with serving(gateway) as served, connected(served.port, REQUEST) as (reader, _):
        first = await reader.read(1 << 16)
        monkeypatch.setattr(MessagesStream, "events", fail)
        monkeypatch.setattr(MessagesStream, "error", fail)
        gate.set()
        rest = await reader.read()
    assert b"message_start" in first
    assert b"0\r\n\r\n" not in rest, "the body has no end"
    assert [line["event"] for line in served.lines].count("stream.render_failed") == 1


async def test_answer_that_cannot_be_stored_still_gets_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = {"model": MODEL, "input": "hi", "stream": True, "store": True}
    async with serving(FakeGateway(lambda: [pieces(2), [finish(1)]])) as served:
        monkeypatch.setattr(served.responses.store, "put", MagicMock(side_effect=MemoryError))
        answer = (await served.post("/v1/responses", body)).text
    assert answer.count('"type":"response.completed"') == 1
    assert [line["event"] for line in served.lines].count("turn.end_failed") == 1


DIED: Step = [Failed(ErrorInfo(ErrorKind.ENGINE, "engine died"))]


def three_choices(*, stream: bool) -> dict[str, object]:
    """A request of Chat."""
    return {"model": MODEL, "n": 3, "stream": stream, "messages": [QUESTION]}


@pytest.mark.parametrize("stream", [True, False])
async def test_choice_that_fails_before_the_first_byte_cancels_the_others(*, stream: bool) -> None:
    turns: Iterator[list[Step]] = iter([[asyncio.Event()], [DIED], [asyncio.Event()]])
    gateway = FakeGateway(lambda: next(turns))
    async with serving(gateway) as served:
        reply = await served.post("/v1/chat/completions", three_choices(stream=stream))
        assert reply.status == 500
        first, _, third = gateway.turns
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(first.cancel_seen.wait(), third.cancel_seen.wait())


@pytest.mark.parametrize("early", [False, True], ids=["after the start", "before the start"])
@pytest.mark.parametrize("stream", [True, False])
async def test_choice_that_fails_after_text_of_another_cancels_the_others(
    *, stream: bool, early: bool
) -> None:
    gate = asyncio.Event()
    said: list[Step] = [[BlockStart(0, "text"), Delta(0, 0, "so")], asyncio.Event()]
    turns: Iterator[list[Step]] = iter([said, [gate, DIED], [asyncio.Event()]])
    gateway = FakeGateway(lambda: next(turns))
    if early:
        gateway.hold = asyncio.Event()
        gate.set()
    async with serving(gateway) as served:
        answering = asyncio.create_task(
            served.post("/v1/chat/completions", three_choices(stream=stream))
        )
        await eventually(lambda: len(gateway.turns) == 3)
        if gateway.hold is not None:
            gateway.hold.set()
        gate.set()
        reply = await asyncio.wait_for(answering, LIMIT_S)
        assert reply.status == (200 if stream else 500)
        assert "engine died" in reply.text
        assert [turn.cancelled for turn in gateway.turns] == [["failed"]] * 3
    assert served.lines[-1]["outcome"] == "engine"

"""Streams are flushed once at the end of a tick, and none is affected by another."""

import asyncio
import json
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
import structlog

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, Delta, Failed
from services.frontend.apis.responses.state.recording import ZstdPacker
from services.frontend.http.sse import EventStream
from services.frontend.stored.memory import MemoryStore
from services.frontend.turns.flusher import FlushedStream, Flusher
from tests.kit.bodies import chat, messages, responses
from tests.kit.events import Step, finish
from tests.kit.frontend import FakeGateway, FakeTurn, serving
from tests.kit.raw_http import connected, post
from tests.kit.waiting import LIMIT_S, eventually

REQUEST = post(json.dumps(messages(stream=True)).encode())


class Stream(FlushedStream):
    def __init__(self, said: list[str], broken: str) -> None:
        self.said, self.broken = said, broken

    def render_pending(self, now: float) -> None:
        self._do("render")

    def send(self, now: float) -> None:
        self._do("send")

    def _do(self, what: str) -> None:
        if self.broken == what:
            raise ZeroDivisionError
        self.said.append(what)


async def test_failure_of_a_stream_does_not_affect_others() -> None:
    """All are rendered before any is written."""
    said: list[str] = []
    flusher = Flusher(structlog.get_logger())
    for broken in ("", "render", "send", ""):
        flusher.add(Stream(said, broken))
    await asyncio.sleep(0)
    assert said == ["render"] * 3 + ["send"] * 3


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


@pytest.mark.parametrize("failing", [(MemoryStore, "put"), (ZstdPacker, "pack")])
async def test_answer_that_cannot_be_stored_still_gets_its_end(
    failing: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = responses(stream=True, store=True)
    async with serving(FakeGateway(lambda: [pieces(2), [finish(1)]])) as served:
        monkeypatch.setattr(*failing, MagicMock(side_effect=MemoryError))
        answer = (await served.post("/v1/responses", body)).text
    assert answer.count('"type":"response.completed"') == 1
    assert [line["event"] for line in served.lines].count("turn.end_failed") == 1


async def test_stream_that_its_first_events_cannot_start_is_an_error_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def begin(turn: FakeTurn) -> None:
        await asyncio.sleep(0)
        turn.sink.opened(turn.prepared)
        with monkeypatch.context() as patch:
            patch.setattr(EventStream, "begin", MagicMock(side_effect=ZeroDivisionError))
            turn.sink.push([BlockStart(0, "text"), Delta(0, 0, "x")])
        turn.sink.push([Delta(0, 1, "y")])

    gateway = FakeGateway(lambda: [[finish(1)]], on_turn=begin)
    async with serving(gateway) as served:
        reply = await served.post("/v1/messages", messages(stream=True))
        assert reply.status == 500
        assert reply.json["error"]["message"] == "Internal server error"
        assert gateway.turns[0].cancelled


DIED: Step = [Failed(ErrorInfo(ErrorKind.ENGINE, "engine died"))]


@pytest.mark.parametrize("stream", [True, False])
async def test_choice_that_fails_after_text_of_another_cancels_the_others(*, stream: bool) -> None:
    gate = asyncio.Event()
    said: list[Step] = [[BlockStart(0, "text"), Delta(0, 0, "so")], asyncio.Event()]
    turns: Iterator[list[Step]] = iter([said, [gate, DIED], [asyncio.Event()]])
    gateway = FakeGateway(lambda: next(turns))
    async with serving(gateway) as served:
        asked = chat(n=3, stream=stream)
        answering = asyncio.create_task(served.post("/v1/chat/completions", asked))
        await eventually(lambda: len(gateway.turns) == 3)
        gate.set()
        reply = await asyncio.wait_for(answering, LIMIT_S)
        assert reply.status == (200 if stream else 500)
        assert "engine died" in reply.text
        assert [turn.cancelled for turn in gateway.turns] == [["abandoned"]] * 3
    assert served.lines[-1]["outcome"] == "engine"

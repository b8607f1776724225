"""Answers HTTP requests with turns, as a stream or as a document.

An operation reads its request and responds to it:

    async with http_answer(turns, http, DIALECT) as answer:
        request = await read_request(http, limit, parse)
        return await answer.respond(request)

Responses reads the body before, because a response in the background has no HTTP answer.

A request that stores its answer, too, is a `ParsedRequest` with a renderer and a collector that do
so.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from aiohttp import web

from services.frontend.apis.shared.api import encoded_response
from services.frontend.apis.shared.client import Headers, header_flag
from services.frontend.http.bodies import is_large, reading_body
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.http.sse import EventStream, SseWriter
from services.frontend.turns.answer import RunningAnswer
from services.frontend.turns.interfaces import ApiDialect, ParsedRequest, RenderInfo
from services.frontend.turns.sinks import EventBuffer
from services.frontend.turns.stream_sink import StreamSink
from services.frontend.turns.turn_service import ModelAccess, TurnService
from services.runtime.long_work import run_in_thread_if

DISPATCH_HEADER = "x-turnwire-tool-dispatch"
REASONING_DISPATCH_HEADER = "x-turnwire-reasoning-dispatch"

R = TypeVar("R")


class HttpAnswer(RunningAnswer):
    """The answer to one HTTP request, while it is made. `http_answer` makes one."""

    def __init__(self, turns: TurnService, http: web.Request, dialect: ApiDialect) -> None:
        context = http[REQUEST_CONTEXT]
        super().__init__(ModelAccess(turns, context), dialect.name, started=context.started)
        self._http = http
        self._keepalive = dialect.keepalive

    async def respond(self, request: ParsedRequest) -> web.StreamResponse:
        """Sends a request, and returns its answer in the form that it asks for: a stream or one
        document. Raises TurnwireError before the first byte."""
        if request.stream:
            return await self._stream(request)
        return encoded_response(await self._collect(request))

    async def _stream(self, request: ParsedRequest) -> web.StreamResponse:
        """Sends a request and streams its answer. Raises TurnwireError before the first byte."""
        writer = SseWriter(
            self._http,
            EventStream(self._http),
            self.turns.config,
            self._keepalive,
            on_slow=self._drop_slow_reader,
        )
        sink = StreamSink(
            self.record,
            lambda: request.renderer(self._info(request)),
            writer,
            self.turns.flusher,
        )
        await self.run(request, sink)
        return writer.response

    async def _collect(self, request: ParsedRequest) -> bytes:
        """Sends a request, and returns its whole answer as JSON. Raises TurnwireError."""
        sink = EventBuffer(self.record)
        await self.run(request, sink)

        collector = request.collector(self._info(request))
        collector.start(sink.prepared)
        for choice, events in enumerate(sink.events):
            collector.add(events, choice)
        return collector.body()

    def _info(self, request: ParsedRequest) -> RenderInfo:
        config = self.turns.config
        headers = self._http.headers
        return self.model.render_info(
            self.model.name_for(request.conversation),
            dispatch=header_flag(headers, DISPATCH_HEADER, config.enable_streaming_tool_dispatch),
            dispatch_reasoning=header_flag(
                headers, REASONING_DISPATCH_HEADER, config.enable_streaming_reasoning_dispatch
            ),
        )

    def _drop_slow_reader(self) -> None:
        self.record.outcome = "slow_reader"
        self.cancel("slow_reader")


@asynccontextmanager
async def http_answer(
    turns: TurnService, http: web.Request, dialect: ApiDialect
) -> AsyncIterator[HttpAnswer]:
    """The answer to one HTTP request, while it is made: it counts as open for its caller, and the
    access log gets its outcome."""
    answer = HttpAnswer(turns, http, dialect)
    context = answer.context
    try:
        async with answer.running():
            with context.open_request():
                yield answer
    finally:
        context.outcome = answer.record.outcome
        context.fields |= answer.record.fields()


async def read_request(
    http: web.Request, max_bytes: int, parse: Callable[[bytes, Headers], R]
) -> R:
    """Reads and parses a request, in a thread if it is large. Raises as `reading_body` and
    `parse`."""
    async with reading_body(http, max_bytes) as body:
        return await run_in_thread_if(is_large(body), parse, body, http.headers)

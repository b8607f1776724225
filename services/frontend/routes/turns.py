"""One turn over HTTP, for every dialect: body → dialect → gateway → stream or document.

The status waits until the gateway has opened the turn, so that what can be refused is refused with one. From then on a
failure is the stream's last event. However the handler ends (the client hung up, did not read, the time is over), the
turn is cancelled unless it had finished.
"""

import asyncio
import re
import time
from dataclasses import dataclass

import msgspec
from aiohttp import HttpVersion11, web
from structlog.typing import FilteringBoundLogger

from schemas.conversation import Conversation
from schemas.errors import ErrorKind, Invalid, NotFound, TimedOut, TurnwireError, raised
from services.frontend.dialects.base import Ask, Dialect, Reply, failure_of
from services.frontend.exchange import EXCHANGE, Exchange
from services.frontend.limits import read_body
from services.frontend.metrics import FrontendMetrics
from services.frontend.record import TurnRecord
from services.frontend.sinks import DocumentSink, StreamSink
from services.frontend.sse import SseWriter, StreamLimits
from services.frontend.turns import OpenTurn, TurnGateway
from services.runtime.config import FrontendConfig

DISPATCH_HEADER = "x-turnwire-tool-dispatch"
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
MAX_NOTES = 16
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class TurnRoute:
    """Serves one dialect's turns."""

    def __init__(
        self,
        dialect: Dialect,
        gateway: TurnGateway,
        config: FrontendConfig,
        metrics: FrontendMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._dialect = dialect
        self._gateway = gateway
        self._config = config
        self._metrics = metrics
        self._log = log
        self._limits = StreamLimits(config.ping_interval_s, config.slow_reader_timeout_s, config.max_buffered_bytes)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Handler: one turn."""
        exchange = request[EXCHANGE]
        record = TurnRecord(self._metrics, exchange.started, asyncio.get_running_loop().time)
        try:
            return await self._answer(request, exchange, record)
        except TurnwireError as error:
            record.outcome = record.outcome or str(error.info.kind)
            raise
        except (asyncio.CancelledError, ConnectionError):
            record.outcome = record.outcome or "hangup"
            raise
        finally:
            record.outcome = record.outcome or "internal"
            exchange.outcome = record.outcome
            exchange.fields |= record.fields()
            record.close(self._dialect.name)

    async def _answer(self, request: web.Request, exchange: Exchange, record: TurnRecord) -> web.StreamResponse:
        deadline = exchange.started + self._config.request_timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                body = await read_body(request, self._config.max_body_bytes)
                ask = self._dialect.parse(body, request.headers)
                conversation = self._admit(ask, exchange, record)
                sink = StreamSink(record, self._log) if ask.stream else DocumentSink(record)
                turn = await self._gateway.open(
                    conversation, sink, turn_id=exchange.id, traceparent=_traceparent(request)
                )
        except TimeoutError:
            raise _late() from None
        record.prompt_tokens = turn.prepared.prompt_tokens
        reply = self._reply(request, exchange, ask.conversation.model or turn.card.name)
        answer = _Answer(turn, ask, reply, record, deadline)
        try:
            if isinstance(sink, StreamSink):
                return await self._stream(request, answer, sink)
            return await self._document(answer, sink)
        finally:
            if not sink.ended:
                turn.cancel("hangup")

    def _admit(self, ask: Ask, exchange: Exchange, record: TurnRecord) -> Conversation:
        """The conversation as the pipeline gets it. Raises where no model of that name is served."""
        exchange.notes = [_UNSAFE.sub("", note)[:64] for note in ask.notes[:MAX_NOTES]]
        record.stream = ask.stream
        conversation = ask.conversation
        try:
            card = self._gateway.resolve(conversation.model)
        except NotFound:
            if conversation.model:
                raise
            raise Invalid("model: Field required", param="model") from None
        record.opened(card.name)
        client = msgspec.structs.replace(conversation.client, tenant=exchange.tenant)
        return msgspec.structs.replace(conversation, model=card.name, client=client)

    def _reply(self, request: web.Request, exchange: Exchange, model: str) -> Reply:
        wish = request.headers.get(DISPATCH_HEADER)
        return Reply(
            turn=exchange.id,
            request_id=exchange.request_id,
            model=model,
            created=int(time.time()),
            dispatch=self._config.enable_streaming_tool_dispatch if wish is None else wish.lower() in ("1", "true"),
        )

    async def _stream(self, request: web.Request, answer: "_Answer", sink: StreamSink) -> web.StreamResponse:
        refusal = sink.refusal()
        if refusal is not None:
            raise raised(refusal)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        if request.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(request)
        renderer = answer.ask.renderer(answer.reply)

        def too_slow() -> None:
            answer.record.outcome = "slow_reader"
            answer.turn.cancel("slow_reader")

        def too_late() -> None:
            answer.record.outcome = str(ErrorKind.TIMED_OUT)
            answer.turn.cancel("timeout")
            writer.write(renderer.error(_late().info))
            writer.close()

        writer = SseWriter(request, response, self._limits, self._dialect.keepalive, on_slow=too_slow)
        writer.write(renderer.start(answer.turn.prepared))
        sink.attach(renderer, writer)
        timer = asyncio.get_running_loop().call_at(answer.deadline, too_late)
        try:
            await writer.run()
        finally:
            timer.cancel()
        return response

    async def _document(self, answer: "_Answer", sink: DocumentSink) -> web.StreamResponse:
        try:
            async with asyncio.timeout_at(answer.deadline):
                await sink.done.wait()
        except TimeoutError:
            answer.turn.cancel("timeout")
            raise _late() from None
        failure = failure_of(sink.events[-1])
        if failure is not None:
            raise raised(failure)
        collector = answer.ask.collector(answer.reply)
        collector.start(answer.turn.prepared)
        collector.events(sink.events)
        return web.Response(body=collector.body(), content_type="application/json")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What both forms of an answer need."""

    turn: OpenTurn
    ask: Ask
    reply: Reply
    record: TurnRecord
    deadline: float
    """The loop's time after which nobody waits."""


def _late() -> TimedOut:
    return TimedOut("The request took longer than this server allows.")


def _traceparent(request: web.Request) -> str | None:
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None

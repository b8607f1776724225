"""Serves the turns of one HTTP request, for every API: parsed request → gateway → stream or document.

The status waits until the gateway has opened every turn, so that a refusal gets an error status. From then on a failure
is the stream's last event. However the handler ends (hang-up, slow reader, timeout), it cancels turns that have not
finished.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec
from aiohttp import web

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.errors import ErrorKind, Invalid, NotFound, TimedOut, TurnwireError, raised
from schemas.events import Prepared
from services.frontend.http.headers import header_flag
from services.frontend.http.middleware import REQUEST_CONTEXT, RequestContext
from services.frontend.http.sse import EventStream, SseWriter, StreamLimits
from services.frontend.turns.interfaces import (
    Ask,
    CancelReason,
    Collector,
    Dialect,
    OpenTurn,
    Renderer,
    Reply,
    TurnGateway,
)
from services.frontend.turns.metrics import FrontendMetrics, TurnRecord
from services.frontend.turns.sinks import ChoiceSink, DocumentSink, Flusher, StreamSink
from services.guides.promises import not_enforced
from services.runtime.after_sending import after_sending
from services.runtime.config import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger

DISPATCH_HEADER = "x-turnwire-tool-dispatch"
REASONING_DISPATCH_HEADER = "x-turnwire-reasoning-dispatch"

Read: TypeAlias = Callable[[], Awaitable[Ask]]
"""Reads and parses the request. Raises TurnwireError."""
OnEnd: TypeAlias = Callable[[Renderer | Collector], None]
"""Called when every turn has ended, before the client gets the end; not for an answer that was given up."""


class TurnServer:
    """Serves turns. One for all APIs."""

    def __init__(
        self, gateway: TurnGateway, config: FrontendConfig, metrics: FrontendMetrics, log: FilteringBoundLogger
    ) -> None:
        self.gateway = gateway
        self.config = config
        self.metrics = metrics
        self.log = log
        self.flusher = Flusher(log)
        """Of all streams of this server."""
        self.limits = StreamLimits(config.ping_interval_s, config.slow_reader_timeout_s, config.max_buffered_bytes)

    async def serve(
        self, request: web.Request, dialect: Dialect, read: Read, *, on_end: OnEnd | None = None
    ) -> web.StreamResponse:
        """Answers one request. Raises TurnwireError for what can be refused with a status."""
        context = request[REQUEST_CONTEXT]
        record = TurnRecord(self.metrics, context.started, asyncio.get_running_loop().time)
        try:
            with context.turn(lambda: record.tokens):
                return await self._serve(request, dialect, read, record, on_end)
        except TurnwireError as error:
            record.outcome = record.outcome or str(error.info.kind)
            raise
        except (asyncio.CancelledError, ConnectionError):
            record.outcome = record.outcome or "hangup"
            raise
        finally:
            record.outcome = record.outcome or "internal"
            context.outcome = record.outcome
            context.fields |= record.fields()
            record.close(dialect.name)

    async def _serve(
        self,
        request: web.Request,
        dialect: Dialect,
        read: Read,
        record: TurnRecord,
        on_end: OnEnd | None,
    ) -> web.StreamResponse:
        context = request[REQUEST_CONTEXT]
        deadline = context.started + self.config.request_timeout_s
        answer: _Answer | None = None
        try:
            async with asyncio.timeout_at(deadline):
                ask = await read()
                conversations = self.admit(ask, context, record)
                reply = partial(self._reply, request, context, ask.conversations[0].model or conversations[0].model)
                answer = _Answer(ask, reply, record, deadline, on_end)
                sink: StreamSink[SseWriter] | DocumentSink
                if ask.stream:
                    sink = self._sink(request, dialect, answer, len(conversations))
                    after_sending(sink.get_ready)  # the request goes first
                else:
                    sink = DocumentSink(record, len(conversations))
                answer.turns = await self._open(conversations, sink, context.id)
        except TimeoutError:
            if answer is None or not isinstance(sink, StreamSink) or not sink.begun:
                raise _late() from None
            return await self._stream(answer, sink)
        record.prompt_tokens = max(turn.prepared.prompt_tokens for turn in answer.turns)
        try:
            if isinstance(sink, StreamSink):
                return await self._stream(answer, sink)
            return await self._document(answer, sink)
        finally:
            if not sink.ended:
                answer.cancel("hangup")

    def _sink(self, request: web.Request, dialect: Dialect, answer: "_Answer", choices: int) -> StreamSink[SseWriter]:
        def make() -> tuple[Renderer, SseWriter]:
            writer = SseWriter(request, EventStream(request), self.limits, dialect.keepalive, on_slow=too_slow)
            return answer.ask.renderer(answer.reply()), writer

        def too_slow() -> None:
            answer.record.outcome = "slow_reader"
            answer.cancel("slow_reader")

        on_failure = partial(answer.cancel, "failed")
        return StreamSink(
            answer.record, self.log, self.flusher, make, choices, on_end=answer.on_end, on_failure=on_failure
        )

    def card(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        """Returns the model of a request. Raises NotFound, and Invalid for a request that names none."""
        try:
            return self.gateway.resolve(model, conversation)
        except NotFound:
            if model:
                raise
            raise Invalid("model: Field required", param="model") from None

    def report(self, ask: Ask, context: RequestContext) -> ModelCard:
        """Returns the request's model, and puts into headers and log what the answer will lack. Raises as `card`."""
        context.note(ask.notes)
        card = self.card(ask.conversations[0].model, ask.conversations[0])
        context.not_enforced = not_enforced(ask.conversations[0], card.features, card.family)
        return card

    def admit(self, ask: Ask, context: RequestContext, record: TurnRecord) -> list[Conversation]:
        """Returns the conversations as the pipeline gets them. Raises as `card`."""
        record.stream = ask.stream
        asked, card = ask.conversations[0].model, self.report(ask, context)
        record.opened(card.name)
        return [
            msgspec.structs.replace(
                conversation,
                model=card.name,
                client=msgspec.structs.replace(
                    conversation.client, tenant=context.tenant, alias=asked if asked in card.aliases else None
                ),
            )
            for conversation in ask.conversations
        ]

    async def _open(
        self, conversations: Sequence[Conversation], sink: StreamSink[SseWriter] | DocumentSink, turn_id: str
    ) -> list[OpenTurn]:
        """Opens every turn, or none."""
        if len(conversations) == 1:
            return [await self.gateway.open(conversations[0], sink, turn_id=turn_id)]
        tasks = [
            asyncio.ensure_future(self.gateway.open(conversation, ChoiceSink(sink, i), turn_id=f"{turn_id}c{i}"))
            for i, conversation in enumerate(conversations)
        ]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            for opened in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(opened, BaseException):
                    opened.cancel("hangup")
            raise

    def _reply(self, request: web.Request, context: RequestContext, model: str) -> Reply:
        config = self.config
        return Reply(
            turn=context.id,
            request_id=context.request_id,
            model=model,
            created=int(time.time()),
            dispatch=header_flag(request.headers, DISPATCH_HEADER, config.enable_streaming_tool_dispatch),
            dispatch_reasoning=header_flag(
                request.headers, REASONING_DISPATCH_HEADER, config.enable_streaming_reasoning_dispatch
            ),
            now=time.time,
        )

    async def _stream(self, answer: "_Answer", sink: StreamSink[SseWriter]) -> web.StreamResponse:
        if not sink.begun:
            refusal = sink.refusal()
            if refusal is not None:
                raise raised(refusal)
            sink.begin(answer.prepared)
        renderer, writer = sink.get_ready()

        def too_late() -> None:
            answer.record.outcome = str(ErrorKind.TIMED_OUT)
            answer.cancel("timeout")
            writer.close(renderer.error(_late().info))

        timer = asyncio.get_running_loop().call_at(answer.deadline, too_late)
        try:
            await writer.run()
        finally:
            timer.cancel()
        return writer.response

    async def _document(self, answer: "_Answer", sink: DocumentSink) -> web.StreamResponse:
        try:
            async with asyncio.timeout_at(answer.deadline):
                await sink.done.wait()
        except TimeoutError:
            answer.cancel("timeout")
            raise _late() from None
        if sink.failure is not None:
            if len(answer.turns) > 1:
                answer.cancel("failed")
            raise raised(sink.failure)
        collector = answer.ask.collector(answer.reply())
        collector.start(answer.prepared)
        for choice, events in enumerate(sink.events):
            collector.events(events, choice)
        body = collector.body()
        if answer.on_end is not None:
            answer.on_end(collector)
        return web.Response(body=body, content_type="application/json")


@dataclass(slots=True)
class _Answer:
    """What both forms of an answer use."""

    ask: Ask
    reply: Callable[[], Reply]
    record: TurnRecord
    deadline: float
    """The loop's time at which the request times out."""
    on_end: OnEnd | None
    turns: Sequence[OpenTurn] = ()
    """One for each choice; none before all are open."""

    @property
    def prepared(self) -> list[Prepared]:
        return [turn.prepared for turn in self.turns]

    def cancel(self, reason: CancelReason) -> None:
        for turn in self.turns:
            turn.cancel(reason)


def _late() -> TimedOut:
    return TimedOut("The request took longer than this server allows.")

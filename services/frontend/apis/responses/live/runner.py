"""Runs turns that have no HTTP response of their own: background responses, WebSocket lanes and summaries."""

import asyncio
import secrets
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from schemas.errors import ContextOverflow, ErrorInfo, ErrorKind, TimedOut, raised
from schemas.events import Prepared, TurnEvent
from services.frontend.apis.base import Renderer, Reply, failure_of
from services.frontend.apis.responses.dialect import ResponsesAsk
from services.frontend.apis.responses.request.truncation import shortened
from services.frontend.http.middleware import RequestContext
from services.frontend.pipeline.interfaces import OpenTurn, TurnGateway
from services.frontend.pipeline.metrics import FrontendMetrics, TurnRecord
from services.frontend.pipeline.sinks import Flusher
from services.frontend.pipeline.turn_server import TurnServer
from services.runtime.config import FrontendConfig

Emit = Callable[[bytes], None]
"""Takes the next part of a rendered stream. Called on the loop; must not raise."""
OnEnd = Callable[[], None]
"""Called once, before the last part of the stream is emitted."""

INTERNAL = ErrorInfo(ErrorKind.ENGINE, "Internal server error")
NOT_STARTED = Prepared(0, 0)
"""Starts the stream of a turn that could not start."""


class Runner:
    """Runs turns."""

    def __init__(
        self,
        server: TurnServer,
        gateway: TurnGateway,
        config: FrontendConfig,
        metrics: FrontendMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._server = server
        self._gateway = gateway
        self._config = config
        self._metrics = metrics
        self._log = log

    def exchange(self, connection: RequestContext) -> RequestContext:
        """The ids of one turn, where one HTTP request makes many turns."""
        exchange = RequestContext(secrets.token_hex(12), None, asyncio.get_running_loop().time())
        exchange.caller = connection.caller
        return exchange

    def record(self) -> TurnRecord:
        """The record of a turn that begins now, for `RequestContext.turn`."""
        loop = asyncio.get_running_loop()
        return TurnRecord(self._metrics, loop.time(), loop.time)

    def reply(self, exchange: RequestContext, model: str) -> Reply:
        """The ids and times of an answer; without a name, the served model. Raises where no such model is served."""
        name = self._server.card(model).name
        return Reply(
            turn=exchange.id,
            request_id=exchange.request_id,
            model=model or name,
            created=int(time.time()),
            now=time.time,
        )

    async def run(
        self,
        ask: ResponsesAsk,
        renderer: Renderer,
        exchange: RequestContext,
        record: TurnRecord,
        *,
        emit: Emit,
        on_end: OnEnd,
    ) -> None:
        """Runs one turn to its end. Cancelling this cancels the turn.

        Raises TurnwireError before the first call of `emit`; later errors are events of the stream.
        """
        sink = RunSink(renderer, record, self._log, self._server.flusher, emit=emit, on_end=on_end)
        turn: OpenTurn | None = None
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                turn = await self._open(ask, exchange, record, sink)
                record.prompt_tokens = turn.prepared.prompt_tokens
                if (refusal := sink.refusal()) is not None:
                    raise raised(refusal)
                sink.begin(turn.prepared)
                await sink.done.wait()
        except TimeoutError:
            if sink.ended and sink.begun:
                sink.flush()  # the turn ended in this very tick
                return
            record.outcome = str(ErrorKind.TIMED_OUT)
            late = TimedOut("The request took longer than this server allows.")
            if not sink.begun:
                raise late from None
            last = renderer.error(late.info)
            on_end()
            emit(last)
        except asyncio.CancelledError:
            record.outcome = "hangup"
            raise
        finally:
            sink.done.set()
            if turn is not None and not sink.ended:
                turn.cancel("timeout" if record.outcome == str(ErrorKind.TIMED_OUT) else "hangup")
            record.outcome = record.outcome or "internal"
            record.close("responses")
            self._log.info(
                "response",
                request=exchange.request_id,
                outcome=record.outcome,
                tenant=exchange.tenant,
                **record.fields(),
            )

    async def _open(self, ask: ResponsesAsk, exchange: RequestContext, record: TurnRecord, sink: "RunSink") -> OpenTurn:
        (conversation,) = self._server.admit(ask, exchange, record)
        record.stream = True
        try:
            return await self._gateway.open(conversation, sink, turn_id=exchange.id)
        except ContextOverflow as overflow:
            if not ask.truncate:
                raise
            conversation = await shortened(conversation, overflow, self._gateway.count)
            return await self._gateway.open(conversation, sink, turn_id=exchange.id)


class RunSink:
    """A `TurnSink` that renders once for all events of a tick. Events that come before `begin` wait for it."""

    def __init__(
        self,
        renderer: Renderer,
        record: TurnRecord,
        log: FilteringBoundLogger,
        flusher: Flusher,
        *,
        emit: Emit,
        on_end: OnEnd,
    ) -> None:
        self.begun = False
        """The stream has started."""
        self.ended = False
        """The turn ended by itself."""
        self.done = asyncio.Event()
        """Everything was emitted, or nothing more is to be."""
        self._renderer = renderer
        self._record = record
        self._log = log
        self._flusher = flusher
        self._emit, self._on_end = emit, on_end
        self._waiting: list[TurnEvent] = []
        self._out = b""
        self._last = False
        """`_out` is the end of the stream."""

    def refusal(self) -> ErrorInfo | None:
        """The error of a turn that failed before its first event."""
        return failure_of(self._waiting[0]) if self._waiting else None

    def begin(self, prepared: Prepared) -> None:
        """Starts the stream; from now on events are emitted as they come."""
        self._emit(self._renderer.start([prepared]))
        self.begun = True
        self.flush()

    def flush(self) -> None:
        """Emits the events that have come, at once."""
        now = asyncio.get_running_loop().time()
        self.render(now)
        self.send(now)

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`."""

    def push(self, events: list[TurnEvent]) -> None:
        """See `TurnSink.push`."""
        if self.ended or self.done.is_set() or not events:
            return
        if self.begun and not self._waiting:
            self._flusher.add(self)
        self._waiting += events
        self.ended = self._record.ends(events[-1])

    def render(self, now: float) -> None:
        """See `Flushed.render`."""
        waiting, self._waiting = self._waiting, []
        if not self.begun or not waiting or self.done.is_set():
            return
        self._record.batch(now)
        self._last = self.ended
        try:
            self._out = self._renderer.events(waiting)
        except Exception:
            # The flusher renders the streams of many turns: an error in one must not reach the others.
            self._log.exception("turn.render_failed")
            self._record.outcome = "internal"
            self._out = self._renderer.error(INTERNAL)
            self._last = True

    def send(self, now: float) -> None:
        """See `Flushed.send`."""
        if not self.begun or self.done.is_set():
            return
        out, self._out = self._out, b""
        try:
            if self._last:
                self._on_end()
            if out:
                self._emit(out)
        finally:
            if self._last:
                self.done.set()

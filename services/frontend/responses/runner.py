"""A turn of the Responses API without an HTTP response around it: for background responses and WebSocket lanes."""

import asyncio
import secrets
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from schemas.errors import ContextOverflow, ErrorInfo, ErrorKind, TimedOut, raised
from schemas.events import Prepared, TurnEvent
from services.frontend.dialects.base import Renderer, Reply, failure_of
from services.frontend.dialects.responses.ask import ResponsesAsk
from services.frontend.exchange import Exchange
from services.frontend.flush import Flusher
from services.frontend.metrics import FrontendMetrics
from services.frontend.record import TurnRecord
from services.frontend.responses.truncation import shortened
from services.frontend.turn_server import TurnServer
from services.frontend.turns import OpenTurn, TurnGateway
from services.runtime.config import FrontendConfig

Emit = Callable[[bytes], None]
"""Takes the next part of a rendered stream. Called on the loop; must not raise."""
OnEnd = Callable[[], None]
"""Called once when the stream is at its end, before its last part is emitted."""

NOTHING = Prepared(0, 0)
"""For a stream that has to begin although its turn could not."""


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

    def exchange(self, connection: Exchange) -> Exchange:
        """A turn's own ids, where one HTTP request makes many turns."""
        exchange = Exchange(secrets.token_hex(12), None, asyncio.get_running_loop().time())
        exchange.caller = connection.caller
        return exchange

    def record(self) -> TurnRecord:
        """What a turn that begins now will take; for `Exchange.turn`."""
        loop = asyncio.get_running_loop()
        return TurnRecord(self._metrics, loop.time(), loop.time)

    def reply(self, exchange: Exchange, model: str) -> Reply:
        """What the answer is made of; without a name, the model is the one that is served. Raises where none is."""
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
        exchange: Exchange,
        record: TurnRecord,
        *,
        emit: Emit,
        on_end: OnEnd,
    ) -> None:
        """Runs one turn to its end. From the first call of `emit` on, whatever happens is told in the stream.

        Cancelling this cancels the turn. Raises TurnwireError as long as nothing was emitted.
        """
        sink = RunSink(record, self._log, self._server.flusher)
        turn: OpenTurn | None = None
        begun = False
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                turn = await self._open(ask, exchange, record, sink)
                record.prompt_tokens = turn.prepared.prompt_tokens
                if (refusal := sink.refusal()) is not None:
                    raise raised(refusal)
                emit(renderer.start([turn.prepared]))
                begun = True
                sink.attach(renderer, emit, on_end)
                await sink.done.wait()
        except TimeoutError:
            if sink.ended and begun:
                sink.flush()  # it ended in this very tick
                return
            record.outcome = str(ErrorKind.TIMED_OUT)
            late = TimedOut("The request took longer than this server allows.")
            if not begun:
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

    async def _open(self, ask: ResponsesAsk, exchange: Exchange, record: TurnRecord, sink: "RunSink") -> OpenTurn:
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
    """A `TurnSink` that renders, once for all that came in a tick. What comes before `attach` waits for it."""

    def __init__(self, record: TurnRecord, log: FilteringBoundLogger, flusher: Flusher) -> None:
        self.ended = False
        """The turn ended by itself."""
        self.done = asyncio.Event()
        """Everything was emitted, or nobody wants it."""
        self._record = record
        self._log = log
        self._flusher = flusher
        self._waiting: list[TurnEvent] = []
        self._out = b""
        self._last = False
        """`_out` is the end of the stream."""
        self._renderer: Renderer | None = None
        self._emit: Emit | None = None
        self._on_end: OnEnd | None = None

    def refusal(self) -> ErrorInfo | None:
        """The error of a turn that failed before it said anything."""
        return failure_of(self._waiting[0]) if self._waiting else None

    def attach(self, renderer: Renderer, emit: Emit, on_end: OnEnd) -> None:
        """From now on events are emitted as they come."""
        self._renderer, self._emit, self._on_end = renderer, emit, on_end
        self.flush()

    def flush(self) -> None:
        """Emits what has come, at once."""
        now = asyncio.get_running_loop().time()
        self.render(now)
        self.send(now)

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`."""

    def push(self, events: list[TurnEvent]) -> None:
        """See `TurnSink.push`."""
        if self.ended or self.done.is_set() or not events:
            return
        if self._renderer is not None and not self._waiting:
            self._flusher.add(self)
        self._waiting += events
        self.ended = self._record.ends(events[-1])

    def render(self, now: float) -> None:
        """See `Flushed.render`."""
        waiting, self._waiting = self._waiting, []
        renderer = self._renderer
        if renderer is None or not waiting or self.done.is_set():
            return
        self._record.batch(now)
        self._last = self.ended
        try:
            self._out = renderer.events(waiting)
        except Exception:
            # The caller renders the streams of many turns: this one's trouble must not become theirs.
            self._log.exception("turn.render_failed")
            self._record.outcome = "internal"
            self._out = renderer.error(ErrorInfo(ErrorKind.ENGINE, "Internal server error"))
            self._last = True

    def send(self, now: float) -> None:
        """See `Flushed.send`."""
        emit, on_end = self._emit, self._on_end
        if emit is None or on_end is None or self.done.is_set():
            return
        out, self._out = self._out, b""
        try:
            if self._last:
                on_end()
            if out:
                emit(out)
        finally:
            if self._last:
                self.done.set()

"""Runs turns that have no HTTP response of their own: background responses and those of WebSocket lanes."""

import asyncio
import time
from collections.abc import Callable

from schemas.conversation import Conversation
from schemas.errors import ErrorKind, TimedOut, raised
from schemas.events import Prepared
from services.frontend.apis.responses.dialect import ResponsesAsk
from services.frontend.apis.responses.request.truncation import try_shortened
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.interfaces import OpenTurn, Renderer, Reply
from services.frontend.turns.metrics import TurnRecord
from services.frontend.turns.sinks import StreamSink
from services.frontend.turns.turn_server import TurnServer

TOO_LATE = "The request took longer than this server allows."
NOT_STARTED = Prepared(0, 0)
"""Starts the stream of a turn that could not start."""


class Emitter:
    """The `StreamWriter` of a turn: hands the parts of its stream on."""

    def __init__(self, emit: Callable[[bytes], None], on_end: Callable[[], None] = lambda: None) -> None:
        """`emit`: takes the next part of the stream. `on_end`: called once, before the last part is emitted. Both are
        called on the loop; `emit` must not raise."""
        self.closed = False
        self.done = asyncio.Event()
        """Everything was emitted."""
        self._emit = emit
        self._on_end = on_end

    def begin(self, data: bytes) -> None:
        """See `StreamWriter.begin`."""
        self._emit(data)

    def write(self, data: bytes, now: float | None = None) -> None:
        """See `StreamWriter.write`."""
        self._emit(data)

    def close(self, last: bytes = b"") -> None:
        """See `StreamWriter.close`."""
        if self.closed:
            return
        self.closed = True
        try:
            self._on_end()
            if last:
                self._emit(last)
        finally:
            self.done.set()

    def abort(self) -> None:
        """See `StreamWriter.abort`: the part that ends the stream is missing."""
        self.close()


class Runner:
    """Runs turns."""

    def __init__(self, server: TurnServer) -> None:
        self.server = server

    def record(self) -> TurnRecord:
        """The record of a turn that begins now, for `RequestContext.turn`."""
        loop = asyncio.get_running_loop()
        return TurnRecord(self.server.metrics, loop.time(), loop.time)

    def reply(self, exchange: RequestContext, model: str) -> Reply:
        """The ids and times of an answer; without a name, the served model. Raises where no such model is served."""
        name = self.server.card(model).name
        return Reply(exchange.id, exchange.request_id, model or name, created=int(time.time()), now=time.time)

    async def run(
        self, ask: ResponsesAsk, renderer: Renderer, exchange: RequestContext, record: TurnRecord, emitter: Emitter
    ) -> None:
        """Runs one turn to its end. Cancelling this cancels the turn.

        Raises TurnwireError before anything is emitted; later errors are events of the stream.
        """
        server = self.server
        sink = StreamSink(record, server.log, server.flusher, lambda: (renderer, emitter))
        turn: OpenTurn | None = None

        async def opened(conversation: Conversation) -> OpenTurn:
            return await server.gateway.open(conversation, sink, turn_id=exchange.id)

        try:
            async with asyncio.timeout(server.config.request_timeout_s):
                (conversation,) = server.admit(ask, exchange, record)
                record.stream = True
                turn = await try_shortened(conversation, opened, server.gateway.count, truncate=ask.truncate)
                record.prompt_tokens = turn.prepared.prompt_tokens
                if (refusal := sink.refusal()) is not None and not sink.begun:
                    raise raised(refusal)
                sink.begin([turn.prepared])
                await emitter.done.wait()
        except TimeoutError:
            if sink.begun and sink.ended:
                await emitter.done.wait()  # the turn ended in this very tick
                return
            record.outcome = str(ErrorKind.TIMED_OUT)
            late = TimedOut(TOO_LATE)
            if not sink.begun:
                raise late from None
            emitter.close(renderer.error(late.info))
        except asyncio.CancelledError:
            record.outcome = "hangup"
            raise
        finally:
            emitter.closed = True
            if turn is not None and not sink.ended:
                turn.cancel("timeout" if record.outcome == str(ErrorKind.TIMED_OUT) else "hangup")
            record.outcome = record.outcome or "internal"
            record.close("responses")
            fields = record.fields() | ({"not_enforced": exchange.not_enforced} if exchange.not_enforced else {})
            ids = {"request": exchange.request_id, "outcome": record.outcome, "tenant": exchange.tenant}
            server.log.info("response", **ids, **fields)

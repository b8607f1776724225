"""Runs turns without an HTTP response of their own: background responses, and responses on a WebSocket."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from typing_extensions import override

from schemas.conversation import Conversation
from schemas.events import Prepared
from services.frontend.apis.responses.dialect import ResponsesAsk
from services.frontend.apis.responses.request.truncation import shortened
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.answer import Shorten
from services.frontend.turns.interfaces import Admitted, Renderer, Reply
from services.frontend.turns.sinks import StreamSink, StreamWriter
from services.frontend.turns.turn_server import TurnServer

NOT_STARTED = Prepared(0, 0)
"""Stands for the preparation of a turn that could not start."""


class Emitter(StreamWriter):
    """Passes the parts of a turn's stream to a function."""

    def __init__(self, emit: Callable[[bytes], None], on_end: Callable[[], None] = lambda: None) -> None:
        """`emit`: takes the next part of the stream. `on_end`: called once, before the last part is emitted. Both are
        called on the loop; `emit` must not raise."""
        self.closed = False
        self.done = asyncio.Event()
        """Everything was emitted."""
        self._emit = emit
        self._on_end = on_end

    @override
    def begin(self, data: bytes) -> None:
        self._emit(data)

    @override
    def write(self, data: bytes, now: float | None = None) -> None:
        self._emit(data)

    @override
    async def run(self) -> None:
        await self.done.wait()

    @override
    def close(self, last: bytes = b"") -> None:
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
        """Ends the stream without its last part."""
        self.close()


class Runner:
    """Runs turns."""

    def __init__(self, server: TurnServer) -> None:
        self.server = server

    def reply(self, context: RequestContext, conversation: Conversation) -> Reply:
        """The ids and times of an answer. Raises NotFound where the request names no model and none is served."""
        name = conversation.model or self.server.model(conversation, context).name
        return Reply(context.id, context.request_id, name, created=int(time.time()), now=time.time)

    def shorten(self, ask: ResponsesAsk, context: RequestContext) -> Shorten | None:
        """The function that shortens the conversation for `truncation: auto`; None where it is not requested."""
        if not ask.truncate:
            return None
        return partial(shortened, count=partial(self.server.count, context=context))

    async def run(self, ask: ResponsesAsk, renderer: Renderer, context: RequestContext, emitter: Emitter) -> None:
        """Runs one turn to its end. Cancelling this cancels the turn.

        Raises TurnwireError before anything is emitted; later errors are events of the stream.
        """
        server = self.server
        answer = server.answer(context, "responses", shorten=self.shorten(ask, context))

        async def begin() -> tuple[Sequence[Admitted], StreamSink[Emitter]]:
            answer.record.stream = True
            return await server.admit(ask, answer), StreamSink(answer, server.flusher, lambda: (renderer, emitter))

        try:
            await server.run(answer, begin)
        finally:
            fields = {"not_enforced": context.not_enforced} if context.not_enforced else {}
            server.log_answer("response", answer, **fields)

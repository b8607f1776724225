"""Runs turns without an HTTP response of their own: background responses, and responses on a
WebSocket."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from typing_extensions import override

from schemas.conversation import Conversation
from schemas.errors import ContextOverflow
from schemas.events import Prepared
from services.frontend.apis.responses.dialect import ResponsesTurn
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.interfaces import Admitted, Renderer
from services.frontend.turns.shortening import shorten_conversation
from services.frontend.turns.sinks import StreamSink, StreamWriter
from services.frontend.turns.turn_runner import TurnRunner

NOT_STARTED = Prepared(0, 0)
"""Stands for the preparation of a turn that could not start."""


class Emitter(StreamWriter):
    """Passes the parts of a turn's stream to a function."""

    def __init__(
        self, emit: Callable[[bytes], None], on_end: Callable[[], None] = lambda: None
    ) -> None:
        """`emit`: takes the next part of the stream. `on_end`: called once, before the last part is
        emitted. Both are called on the loop; `emit` must not raise."""
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


async def truncate(
    turns: TurnRunner,
    ask: ResponsesTurn,
    context: RequestContext,
    conversation: Conversation,
    overflow: ContextOverflow,
) -> Conversation:
    """Shortens the conversation for `truncation: auto`. Raises `overflow` where that is not
    requested, and as `shorten_conversation`."""
    if not ask.truncate:
        raise overflow
    return await shorten_conversation(conversation, overflow, partial(turns.count, context=context))


async def run_turn(
    turns: TurnRunner,
    ask: ResponsesTurn,
    renderer: Renderer,
    context: RequestContext,
    emitter: Emitter,
) -> None:
    """Runs one turn to its end. Cancelling this cancels the turn.

    Raises TurnwireError before anything is emitted; later errors are events of the stream.
    """
    answer = turns.answer(context, "responses", shorten=partial(truncate, turns, ask, context))

    async def begin() -> tuple[Sequence[Admitted], StreamSink[Emitter]]:
        answer.record.stream = True
        return await turns.admit(ask, answer), StreamSink(
            answer, turns.flusher, lambda: (renderer, emitter)
        )

    try:
        await turns.run(answer, begin)
    finally:
        fields = {"not_enforced": context.not_enforced} if context.not_enforced else {}
        turns.log_answer("response", answer, **fields)

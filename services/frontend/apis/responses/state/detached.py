"""A response without an HTTP answer of its own, while it is made: in the background, or on a
WebSocket."""

import asyncio
from abc import abstractmethod

from typing_extensions import override

from schemas.events import Prepared
from services.frontend.apis.responses.render.document import response_id
from services.frontend.apis.responses.request import DIALECT
from services.frontend.apis.responses.state.accepted_request import AcceptedRequest
from services.frontend.http.sse import StreamWriter
from services.frontend.turns.answer import RunningAnswer, logged
from services.frontend.turns.stream_sink import StreamSink
from services.frontend.turns.turn_service import ModelAccess

_NO_PROMPT = Prepared(0, 0)
"""Stands for the preparation of a turn that could not start."""


class DetachedResponse(StreamWriter):
    """One response while it is made, and the writer of its stream: a subclass emits the parts."""

    def __init__(self, accepted: AcceptedRequest, model: ModelAccess) -> None:
        """Raises NotFound or Forbidden for the request's model."""
        answer = model.render_info(model.name_for(accepted.request.conversation))
        self.id = response_id(answer.turn)
        self.accepted = accepted
        self.recorder = accepted.recorder(answer)
        self.closed = False
        self.request_id = answer.request_id
        self._model = model
        self.sent = asyncio.Event()
        """Everything was emitted."""

    @abstractmethod
    def emit(self, rendered: bytes) -> None:
        """Takes the next part of the stream. Called on the loop; must not raise."""

    def on_end(self) -> None:
        """Called once, before the last part is emitted."""

    def emit_opening(self) -> None:
        """Emits the opening of a response with a turn that could not start."""
        self.emit(self.recorder.start([_NO_PROMPT]))

    async def make(self) -> None:
        """Runs the turn to its end. Cancelling this cancels the turn.

        Raises TurnwireError before anything is emitted; later errors are events of the stream.
        """
        answer = RunningAnswer(self._model, DIALECT.name)
        async with logged(answer, "response"):
            sink = StreamSink(answer.record, lambda: self.recorder, self, answer.turns.flusher)
            await answer.run(self.accepted.request, sink)

    @override
    def begin(self, data: bytes) -> None:
        self.emit(data)

    @override
    def write(self, data: bytes, now: float | None = None) -> None:
        self.emit(data)

    @override
    async def run(self) -> None:
        await self.sent.wait()

    @override
    def close(self, last: bytes = b"") -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self.on_end()
            if last:
                self.emit(last)
        finally:
            self.sent.set()

    @override
    def abort(self) -> None:
        """Ends the stream without its last part."""
        self.close()

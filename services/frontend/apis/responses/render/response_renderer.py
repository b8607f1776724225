"""The common part of the streams of a Response: its first events and its last one, the numbers of
its events, and its document."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw
from typing_extensions import override

from schemas.errors import ErrorInfo, raised
from schemas.events import OutputTokens, Prepared, TurnEvent
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.render.document import ResponseState, diagnostics
from services.frontend.apis.responses.render.events import EventEncoder
from services.frontend.apis.responses.render.items.open_item import ResponsesShape
from services.frontend.apis.shared.turn_renderer import TurnRenderer
from services.frontend.turns.interfaces import Collector, Renderer, RenderInfo


class ResponseRenderer(TurnRenderer[wire_events.Event], Renderer):
    """Renders a Response, from its opening to its end. A subclass renders what is between them."""

    def __init__(self, answer: RenderInfo, shape: ResponsesShape) -> None:
        self.state = ResponseState(answer, shape)
        self._encoder = EventEncoder()

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`response.created` and `response.in_progress`, and the items that were made before the
        turn."""
        return self.encode(self.opening(prepared[0]))

    def opening(self, prepared: Prepared) -> list[wire_events.Event]:
        """The events of `start`."""
        shape = self.state.shape
        self.state.tokens.start(prepared)
        if shape.compared:
            self.state.diagnostics = diagnostics(prepared.comparison, compacted=shape.compacted)
        response = self.state.document()
        out: wire_events.Events = [
            wire_events.ResponseCreated(response=response),
            wire_events.ResponseInProgress(response=response),
        ]
        for item in shape.before:
            out += self.state.add_item(item)
        return out

    @override
    def api_events(self, events: Sequence[TurnEvent]) -> list[wire_events.Event]:
        return [] if self.state.ended else super().api_events(events)

    @override
    def encode(self, events: Sequence[wire_events.Event]) -> bytes:
        return self._encoder.encode(events)

    def error(self, info: ErrorInfo) -> bytes:
        """`response.failed`, the last event."""
        out: wire_events.Events = []
        self._fail(info, out)
        return self.encode(out)

    def break_off(self) -> bytes:
        """Ends the output of a cancelled turn."""
        out: wire_events.Events = []
        if not self.state.ended:
            self._break_off(out)
        return self.encode(out)

    def _tokens(self, event: OutputTokens, out: wire_events.Events) -> None:
        self.state.tokens.add(event)

    def _fail(self, info: ErrorInfo, out: wire_events.Events) -> None:
        if self.state.ended:
            return
        self._break_off(out)
        self.state.fail(info)
        out.append(self.state.last_event())

    def _break_off(self, out: wire_events.Events) -> None:
        """Ends the output of a turn without an end."""


class ResponsesCollector(Collector):
    """Collects one turn into a document: the Response in the last event of its stream."""

    def __init__(
        self, stream: ResponseRenderer, user_messages: Sequence[Raw] | None = None
    ) -> None:
        """`user_messages`: set for POST /v1/responses/compact: the messages that its document
        repeats."""
        self.stream = stream
        self._user_messages = user_messages

    @override
    def start(self, prepared: Sequence[Prepared]) -> None:
        self.stream.opening(prepared[0])

    @override
    def add(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        self.stream.render(events)

    @override
    def body(self) -> bytes:
        """Raises TurnwireError where a compaction has no summary."""
        state = self.stream.state
        if state.failure is not None:
            raise raised(state.failure)
        document = state.document()
        if self._user_messages is None or document.usage is None:
            return msgspec.json.encode(document)
        compaction = wire_answers.Compaction(
            id=document.id,
            created_at=document.created_at,
            output=[*self._user_messages, *document.output],
            usage=document.usage,
        )
        return msgspec.json.encode(compaction)

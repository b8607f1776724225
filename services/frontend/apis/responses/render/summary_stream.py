"""Renders a compaction: a Response with one item, which has the model's summary, sealed."""

from collections.abc import Sequence

from typing_extensions import override

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Finish, TurnEvent
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.parse.compaction import TextSealer, seal_summary
from services.frontend.apis.responses.render.items.open_item import ResponsesShape, encode_item
from services.frontend.apis.responses.render.response_renderer import ResponseRenderer
from services.frontend.turns.compaction import summary_text
from services.frontend.turns.interfaces import RenderInfo

NO_SUMMARY = ErrorInfo(ErrorKind.ENGINE, "The model wrote no summary of the conversation.")


class SummaryStream(ResponseRenderer):
    """Renders the turn that writes a summary. Codex treats any other item as a failure, so neither
    reasoning nor text is sent; before the item the stream has only keep-alive events."""

    def __init__(self, answer: RenderInfo, shape: ResponsesShape, sealer: TextSealer) -> None:
        super().__init__(answer, shape)
        self._sealer = sealer
        self._events: list[TurnEvent] = []

    @override
    def api_events(self, events: Sequence[TurnEvent]) -> wire_events.Events:
        self._events += events
        return super().api_events(events)

    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        summary = summary_text(self._events)
        if not summary:
            self._fail(NO_SUMMARY, out)
            return
        item = wire_answers.OutputCompaction(
            id=f"cmp_{self.state.answer.turn}000",
            encrypted_content=seal_summary(self._sealer, summary),
        )
        out += self.state.add_item(encode_item(item))
        self.state.finish(event.usage, cut=False)  # a summary is used even if it reached the limit
        out.append(self.state.last_event())

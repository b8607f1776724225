"""Renders the turn that writes a summary as a message with only the compaction. Pure."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from schemas.events import Finish, FinishReason, TurnEvent, Usage
from services.frontend.apis.messages import wire_events
from services.frontend.apis.messages.compaction.edit import block_events, summary_of
from services.frontend.apis.messages.compaction.request import SummaryRequest
from services.frontend.apis.messages.message_renderer import (
    MessageRenderer,
    iterations,
    last_usage,
    stop_of,
)
from services.frontend.turns.compaction import summary_text
from services.frontend.turns.interfaces import RenderInfo


class WholeTurnStream(MessageRenderer):
    """Renders a turn when it has ended. A subclass makes the message."""

    def __init__(
        self,
        answer: RenderInfo,
        *,
        applied_edits: list[dict[str, Any]] | None = None,
        compare: str | None = None,
    ) -> None:
        super().__init__(answer, applied_edits=applied_edits, compare=compare)
        self._events: list[TurnEvent] = []

    @override
    def api_events(self, events: Sequence[TurnEvent]) -> wire_events.Events:
        self._events += events
        return super().api_events(events)

    @abstractmethod
    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        """Renders the message of the turn, which is in `_events`."""

    def _end_message(self, stop: wire_events.Stop, usage: Usage) -> wire_events.Events:
        """The last events of a message for which a summary took this usage."""
        answer_usage = last_usage(Usage())
        answer_usage.iterations = iterations(compaction=usage)
        return self._last(wire_events.MessagesMessageDelta(stop, answer_usage))


class PausedCompaction(WholeTurnStream):
    """Renders the compaction of `pause_after_compaction`."""

    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        out += block_events(summary_of(self._events))
        out += self._end_message(_COMPACTED, event.usage)


class SummaryAnswer(WholeTurnStream):
    """Renders the answer to a request with `compaction`: the block is whole in its first event. A
    summary that was cut off, or is empty, leaves no content."""

    def __init__(self, answer: RenderInfo, request: SummaryRequest) -> None:
        super().__init__(answer)
        self._request = request

    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        summary = ""
        if event.reason is FinishReason.STOP:
            summary = summary_text(self._events)
        if not summary:
            out += self._end_message(stop_of(event, 0), event.usage)
            return
        block = self._request.block(summary)
        out += [wire_events.ContentBlockStart(0, block), wire_events.ContentBlockStop(0)]
        out += self._end_message(_COMPACTED, event.usage)


_COMPACTED = wire_events.Stop("compaction", None)

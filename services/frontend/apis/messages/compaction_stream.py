"""The answer that is a compaction alone, where the client asked for a pause behind it."""

from collections.abc import Sequence
from typing import Any

from schemas.events import Finish, TurnEvent, Usage
from services.frontend.apis.base import Reply, failure_of
from services.frontend.apis.messages.compaction import iteration, summary_of
from services.frontend.apis.messages.stream import MessagesStream, last_usage


class CompactionStream(MessagesStream):
    """Renders a turn that writes a summary as a message with nothing but the compaction."""

    def __init__(self, reply: Reply, **options: Any) -> None:
        super().__init__(reply, **options)
        self._events: list[TurnEvent] = []

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """See `MessagesStream.events`. Nothing is sent before the end."""
        self._events += events
        last = events[-1]
        if (failure := failure_of(last)) is not None:
            return self.error(failure)
        if not isinstance(last, Finish):
            return b""
        self._compaction = summary_of(self._events)
        usage = {**last_usage(Usage()), "iterations": [iteration("compaction", last.usage)]}
        stop = {"stop_reason": "compaction", "stop_sequence": None}
        return self._compacted() + self._last({"delta": stop, "usage": usage})

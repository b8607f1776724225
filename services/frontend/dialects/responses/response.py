"""A turn as one Response document: what the stream says, said once."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import raised
from schemas.events import Prepared, TurnEvent
from services.frontend.dialects.responses.document import Status
from services.frontend.dialects.responses.stream import ResponsesStream


class ResponsesCollector:
    """Collects one turn: it runs the stream that would have been sent and keeps where that ends, so that both are the
    same to the last item."""

    def __init__(self, stream: ResponsesStream) -> None:
        self._stream = stream

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Call it first."""
        self._stream.start(prepared)

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """Takes the next events."""
        self._stream.events(events, choice)

    def response(self, status: Status | None = None) -> dict[str, Any]:
        """As `ResponsesStream.response`."""
        return self._stream.response(status)

    def output_items(self) -> list[Raw]:
        """The items that are finished, as JSON."""
        return self._stream.output_items()

    def body(self) -> bytes:
        """The Response. Call it after a Finish only. Raises TurnwireError where a compaction came to nothing."""
        if self._stream.failure is not None:
            raise raised(self._stream.failure)
        return msgspec.json.encode(self._stream.response())

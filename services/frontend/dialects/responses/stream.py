"""A turn as the event stream of the Responses API (apis.md B.6)."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from schemas.errors import ErrorInfo
from schemas.events import Prepared, TurnEvent

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'


class ResponsesStream:
    """Renders one turn."""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`response.created` and `response.in_progress`."""
        raise NotImplementedError

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events."""
        raise NotImplementedError

    def error(self, info: ErrorInfo) -> bytes:
        """`response.failed`; nothing follows it."""
        raise NotImplementedError

    def response(self, status: str | None = None) -> dict[str, Any]:
        """The Response object as it stands: `in_progress` until the turn has ended. `status` overrides the state, for
        one that was cancelled."""
        raise NotImplementedError

    def output_items(self) -> list[Raw]:
        """The items that are finished, as JSON."""
        raise NotImplementedError


def payloads(rendered: bytes) -> list[bytes]:
    """The JSON of every event in what a `ResponsesStream` rendered: WebSocket frames, or a stored stream. Every event
    with a `sequence_number` is at that place of the whole stream's list; dispatch events and `[DONE]` are left out."""
    raise NotImplementedError


def frame(payload: bytes) -> bytes:
    """One of the `payloads` as it stood in the stream."""
    raise NotImplementedError

"""A turn as the output items of a Response, and as one document."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from schemas.events import Prepared, TurnEvent


class ResponsesCollector:
    """Collects one turn."""

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Notes that the prompt is ready."""
        raise NotImplementedError

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """Takes the next events."""
        raise NotImplementedError

    def response(self, status: str | None = None) -> dict[str, Any]:
        """The Response object as it stands: `in_progress` until the turn has ended. `status` overrides the state, for
        one that was cancelled."""
        raise NotImplementedError

    def output_items(self) -> list[Raw]:
        """The items that are finished, as JSON."""
        raise NotImplementedError

    def body(self) -> bytes:
        """The Response. Call it after a Finish only."""
        raise NotImplementedError

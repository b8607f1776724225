"""Seals of reasoning as `reasoning_details`: a client that sends them back restores what was thought, and where.

The entry's id is that of the call before which it was thought; clients keep such entries with their calls. The SDKs
join entries by `index`, so each is sent once, whole.
"""

from typing import Any

from services.frontend.dialects.chat.reasoning import DETAILS


class SealList:
    """The seals of one choice."""

    __slots__ = ("_name", "_next", "_waiting")

    def __init__(self, turn: str, choice: int) -> None:
        self._name = f"rs_{turn}{choice}"
        self._next = 0
        self._waiting: list[str] = []

    def add(self, seal: str) -> None:
        """A block of reasoning is over."""
        self._waiting.append(seal)

    def take(self, call_id: str | None) -> list[dict[str, Any]]:
        """The entries of what was thought since the last call. `call_id` None: the turn is over."""
        entries = []
        for seal in self._waiting:
            entry_id = call_id or f"{self._name}{self._next}"
            entries.append(
                {"type": "reasoning.encrypted", "data": seal, "id": entry_id, "format": DETAILS, "index": self._next}
            )
            self._next += 1
        self._waiting.clear()
        return entries

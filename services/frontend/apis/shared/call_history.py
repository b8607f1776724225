"""Holds the turns that were read of a request, and matches results with their calls. Pure."""

from collections.abc import Iterable

from schemas.conversation import Call, Result, Turn


class CallHistory:
    """The turns that were read so far, and their calls."""

    def __init__(self, *, pairing: bool) -> None:
        """`pairing`: a result needs its call, and the calls of a message have different ids."""
        self.turns: list[Turn] = []
        self._pairing = pairing
        self._calls: dict[str, tuple[str, int]] = {}
        """By call id: name, and position among all calls of the conversation; of equal ids the last."""
        self._made = 0

    def _add_call(self, call: Call) -> None:
        self._calls[call.call_id] = call.name, self._made
        self._made += 1

    def _name_of(self, call_id: str) -> str | None:
        """The name of a call; None for an unknown one."""
        return self._calls[call_id][0] if call_id in self._calls else None

    def _add_results(self, results: Iterable[Result]) -> None:
        """Adds results in the order of their calls, since many templates tell them apart by nothing else."""
        ordered = sorted(results, key=lambda result: self._calls.get(result.call_id, ("", self._made))[1])
        self.turns.append(Turn("tool", [*ordered]))

"""A sink of a turn that keeps what it takes."""

from schemas.events import Delta, Failed, Finish, Prepared, TurnEvent
from services.frontend.turns.interfaces import TurnSink


class RecordingSink(TurnSink):
    """Checks that it is opened before the first event, and that nothing follows the end. The next
    batch is answered with the error `broken`, if there is one."""

    def __init__(self) -> None:
        self.prepared: list[Prepared] = []
        self.batches: list[list[TurnEvent]] = []
        self.broken: Exception | None = None

    def opened(self, prepared: Prepared) -> None:
        assert not self.batches
        self.prepared.append(prepared)

    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        assert events
        assert self.end is None, "nothing follows the end"
        if self.broken is not None:
            broken, self.broken = self.broken, None
            raise broken
        self.batches.append(events)

    @property
    def events(self) -> list[TurnEvent]:
        return [event for batch in self.batches for event in batch]

    @property
    def end(self) -> Finish | Failed | None:
        last = self.batches[-1][-1] if self.batches else None
        return last if isinstance(last, Finish | Failed) else None

    @property
    def kinds(self) -> list[str]:
        """The names of the events' types."""
        return [type(event).__name__ for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))

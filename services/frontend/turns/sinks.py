"""The sink at the end of an answer: `EventBuffer` keeps the events for a document,
`stream_sink.StreamSink` renders them into a stream.

A sink does not open or cancel turns: `answer.RunningAnswer` does.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence

from typing_extensions import override

from schemas.errors import ErrorInfo, raised
from schemas.events import Delta, Finish, LastEvent, Prepared, TurnEvent, failure_of
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.interfaces import TurnSink


class AnswerSink(TurnSink):
    """Receives the events of all turns of an answer, each with its choice."""

    def __init__(self, record: AnswerRecord) -> None:
        self.ended = False
        """All events of the answer have arrived. They may not be written yet."""
        self._record = record
        self._running = 0
        """Choices that have not ended."""
        self._failure: ErrorInfo | None = None

    @property
    def started(self) -> bool:
        """Whether the head is sent, so that errors can only be sent in the answer."""
        return False

    @property
    def failed(self) -> bool:
        """Whether the answer has failed while some of its choices still run."""
        return self._failure is not None and self._running > 0

    @abstractmethod
    def expect_choices(self, choices: int) -> None:
        """Takes the number of choices of an admitted request. Their turns are opened next."""

    @override
    def opened(self, prepared: Prepared) -> None:
        self._record.move_to(prepared.model)

    @abstractmethod
    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Starts the answer when all turns are open. Raises TurnwireError for a turn that has
        failed since."""

    @override
    @abstractmethod
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None: ...

    @abstractmethod
    async def finish(self) -> None:
        """Returns at the end of the answer."""

    @abstractmethod
    def give_up(self, error: ErrorInfo) -> None:
        """Ends the started answer with an error."""

    @abstractmethod
    def stop(self) -> None:
        """Accepts nothing more."""

    def _end_choice(self, last: LastEvent, choice: int, tokens: int) -> int:
        """Applies the end of a choice; a failure ends the whole answer. Returns the output tokens
        of the choice. `tokens`: those before its end token."""
        self._record.record_end(last, choice)
        self._running -= 1
        self._failure = failure_of(last)
        self.ended = self._failure is not None or not self._running
        return last.usage.kept if isinstance(last, Finish) else tokens


class EventBuffer(AnswerSink):
    """Keeps all events until the turns have ended."""

    def __init__(self, record: AnswerRecord) -> None:
        super().__init__(record)
        self.events: Sequence[list[TurnEvent]] = ()
        """The events of each choice."""
        self.prepared: Sequence[Prepared] = ()
        self._done = asyncio.Event()

    @override
    def expect_choices(self, choices: int) -> None:
        self._running = choices
        self.events = [[] for _ in range(choices)]

    @override
    def begin(self, prepared: Sequence[Prepared]) -> None:
        self.prepared = prepared

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        if self.ended or not events:
            return
        self.events[choice] += events
        last = events[-1]
        if type(last) is not Delta and isinstance(last, LastEvent):
            tokens = self._end_choice(last, choice, tokens)
        self._record.record_batch(tokens, asyncio.get_running_loop().time(), choice)
        if self.ended:
            self._done.set()

    @override
    async def finish(self) -> None:
        """Waits until the turns have ended. Raises TurnwireError if one failed."""
        await self._done.wait()
        if self._failure is not None:
            raise raised(self._failure)

    @override
    def give_up(self, error: ErrorInfo) -> None:
        self._failure = error
        self._done.set()

    @override
    def stop(self) -> None:
        """Does nothing: nothing follows the events."""

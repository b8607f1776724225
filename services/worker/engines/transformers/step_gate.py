"""Holds the library's thread between two of its steps, and runs work there."""

from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from services.worker.engines.open_turns import Callback


class StepGate:
    """A gate before each step. All methods but `pass_through` are called on the event loop."""

    def __init__(self) -> None:
        self.is_closed = False
        self.is_holding = False
        """Whether the thread waits, or runs work, between two steps."""
        self._work: SimpleQueue[tuple[Future[None], Callback]] = SimpleQueue()

    def install(self, processor: Any) -> None:
        """Puts the gate before each step of the library's batch processor."""
        prepare = processor.prepare_next_batch

        def prepare_next_batch() -> Any:
            self.pass_through()
            return prepare()

        processor.prepare_next_batch = prepare_next_batch

    def pass_through(self) -> None:
        """Runs the work that was passed, and returns when the gate is open."""
        while self.is_closed or not self._work.empty():
            self.is_holding = True
            future, work = self._work.get()
            try:
                work()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)
        self.is_holding = False

    def close(self) -> None:
        """Lets no further step begin."""
        self.is_closed = True

    def open(self) -> None:
        """Lets the steps go on."""
        self.is_closed = False
        self.run(lambda: None)  # wakes the thread

    def run(self, work: Callback) -> Future[None]:
        """Runs `work` between two steps. The result never comes if the library's thread ends
        first."""
        future: Future[None] = Future()
        self._work.put((future, work))
        return future

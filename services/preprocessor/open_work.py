"""The work of one preprocessor that is not done: turns without a worker, and other requests without
an answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from schemas.control import Cancel
from schemas.requests import TurnRequest
from services.runtime.caches.recent_turns import RecentTurns
from services.runtime.process import Process


class OpenAttempt(NamedTuple):
    """The newest attempt at a turn without a worker."""

    number: int
    task: asyncio.Task[None]


class OpenWork:
    """The tasks that a drain waits for, those of turns among them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: dict[str, OpenAttempt] = {}
        self._cancelled = RecentTurns()

    def __repr__(self) -> str:
        return f"<{len(self._tasks)} tasks, {len(self._turns)} turns without a worker>"

    @property
    def turns(self) -> int:
        """The number of turns without a worker."""
        return len(self._turns)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task that a drain waits for."""
        task = self._process.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def supersedes(self, request: TurnRequest) -> bool:
        """Whether this attempt is newer than the present one, and than the cancelled ones."""
        attempt = self._cancelled.attempt(request.turn)
        present = self._turns.get(request.turn)
        if present is not None:
            attempt = max(attempt, present.number)
        return request.attempt > attempt

    def start_turn(self, request: TurnRequest, work: Coroutine[Any, Any, None]) -> None:
        """Starts an attempt at a turn."""
        task = self.start(work, request.turn)
        self._turns[request.turn] = OpenAttempt(request.attempt, task)
        task.add_done_callback(self._turn_done)

    def cancel(self, cancel: Cancel) -> None:
        """Cancels the attempts at a turn up to this one, also those that arrive later."""
        self._cancelled.note(cancel.turn, cancel.attempt)
        present = self._turns.get(cancel.turn)
        if present is not None and present.number <= cancel.attempt:
            # rare: a turn is cancelled while its prompt is made
            present.task.cancel()

    async def wait_until_done(self) -> None:
        """Returns when every turn has a worker, and every other request an answer."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _turn_done(self, task: asyncio.Task[None]) -> None:
        turn = task.get_name()
        present = self._turns.get(turn)
        if present is not None and present.task is task:
            del self._turns[turn]

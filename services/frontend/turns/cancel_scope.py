"""Cancels what a task does with a reason, which other processes get with the cancellation of its
turn."""

import asyncio
from types import TracebackType
from typing import get_args

from services.frontend.turns.interfaces import CancelReason

_REASONS: dict[str, CancelReason] = {reason: reason for reason in get_args(CancelReason)}


class CancelScope:
    """Code of a task that can be cancelled, as in `asyncio.timeout`, but with a reason. The code
    after the scope goes on, and finds the reason in it."""

    def __init__(self) -> None:
        self.reason: CancelReason | None = None
        """Why it was cancelled; None: it was not."""
        self._task: asyncio.Task[object] | None = None
        """The task that is in the scope."""
        self._outer_requests = 0
        """The task's requests of cancellation before it entered the scope."""

    @property
    def is_entered(self) -> bool:
        """Whether the task is in the scope."""
        return self._task is not None

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the code in the scope. Does nothing before and after it, and the second time."""
        if self._task is not None and self.reason is None:
            self.reason = reason
            self._task.cancel(reason)

    def __enter__(self) -> "CancelScope":
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._outer_requests = task.cancelling()
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        """Ends a cancellation by this scope, unless the task was also cancelled by others."""
        task = self._task
        self._task = None
        if task is None or self.reason is None:
            return False
        is_only_request = task.uncancel() <= self._outer_requests
        return is_only_request and isinstance(error, asyncio.CancelledError)


def reason_of(error: BaseException) -> CancelReason:
    """Returns the reason to cancel the turns of an answer that ends with this error: the message of
    the cancellation, "hangup" if it has none, or "abandoned" for another error."""
    if isinstance(error, asyncio.CancelledError):
        return _REASONS.get(str(error), "hangup")
    return "abandoned"

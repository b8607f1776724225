"""A scope is cancelled with a reason, and ends only its own cancellation."""

import asyncio

import pytest

from services.frontend.turns.cancel_scope import CancelScope, reason_of
from tests.kit.waiting import LIMIT_S


async def test_cancelled_code_gets_the_reason_and_the_task_goes_on() -> None:
    reasons = []
    scope = CancelScope()
    with scope:
        asyncio.get_running_loop().call_soon(scope.cancel, "abandoned")
        try:
            await asyncio.sleep(LIMIT_S)
        except asyncio.CancelledError as error:
            reasons.append(reason_of(error))
            raise
    await asyncio.sleep(0)
    assert (reasons, scope.reason) == (["abandoned"], "abandoned")


async def test_code_that_ends_in_time_is_not_cancelled() -> None:
    with CancelScope() as scope:
        pass
    scope.cancel("abandoned")
    await asyncio.sleep(0)
    assert scope.reason is None


async def test_cancellation_of_the_task_is_not_ended() -> None:
    """Not even where the scope is cancelled, too."""
    scope = CancelScope()

    async def work() -> None:
        with scope:
            await asyncio.sleep(LIMIT_S)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    scope.cancel("timeout")
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert reason_of(cancelled.value) == "hangup"


def test_other_errors_are_failures() -> None:
    assert reason_of(ZeroDivisionError()) == "abandoned"
    assert reason_of(asyncio.CancelledError("because")) == "hangup"

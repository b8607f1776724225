"""An event loop that is blocked ends the process."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from services.worker.engines.trtllm import loop_guard
from services.worker.engines.trtllm.loop_guard import LoopGuard
from tests.kit.waiting import LIMIT_S, eventually


async def test_a_blocked_event_loop_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_guard, "GUARD_INTERVAL_S", 0.01)
    answers: list[object] = []
    left: list[int] = []
    gone = threading.Event()

    def leave(status: int) -> None:
        left.append(status)
        gone.set()

    def answer(callback: Callable[[], object]) -> None:
        answers.append(callback())

    with monkeypatch.context() as running:
        running.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", answer)
        guard = LoopGuard(0.05, leave)
        await eventually(lambda: len(answers) > 20)
        assert not left, "the loop always answers"
    assert gone.wait(LIMIT_S), "blocks the loop"
    assert left == [1]
    guard.stop()

"""The clock of engine steps."""

import asyncio
from collections.abc import Callable

import pytest

from tests.kit.waiting import LIMIT_S
from turnwire_tools.script import ticker
from turnwire_tools.script.ticker import NOW, Ticker, aligned


@pytest.mark.parametrize(
    ("after", "period", "expected"), [(0, 10, 10), (9, 10, 10), (10, 10, 20), (37, 0, 37)]
)
def test_streams_of_one_pace_are_aligned(after: int, period: int, expected: int) -> None:
    assert aligned(after, period) == expected


async def test_item_without_delay_is_stepped_once_per_turn_of_the_loop() -> None:
    steps: list[str] = []

    def step(item: str, now: int) -> int | None:
        steps.append(item)
        return NOW if len(steps) < 6 else None

    clock: Ticker[str] = Ticker(step)
    clock.add("a")
    clock.add("b")
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert len(steps) == 2 * turn
    await asyncio.sleep(0)
    assert steps == ["a", "b"] * 3 + ["a"] * (len(steps) - 6)


async def test_items_due_together_are_stepped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000
    monkeypatch.setattr(ticker, "now_us", lambda: now)
    ticks: list[list[str]] = [[]]
    clock: Ticker[str] = Ticker(lambda item, now: ticks[-1].append(item))
    timers: list[tuple[float, Callable[[int], None], int]] = []

    def call_later(delay: float, call: Callable[[int], None], at: int) -> asyncio.Handle:
        timers.append((delay, call, at))
        return asyncio.Handle(call, (at,), asyncio.get_running_loop())

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    for item, at in (
        ("late", now + 9_000),
        ("one", now + 2_000),
        ("two", now + 2_000),
        ("soon", now + 1_000),
    ):
        clock.add(item, at)
    for (delay, tick, at), expected in zip(
        sorted(timers), (["soon"], ["one", "two"], ["late"]), strict=True
    ):
        now = 1_000_000 + round(delay * 1e6)
        tick(at)
        assert ticks[-1] == expected
        ticks.append([])
    clock.stop()


async def test_an_earlier_time_moves_the_timer_forward() -> None:
    done = asyncio.Event()
    clock: Ticker[str] = Ticker(lambda item, now: done.set())
    clock.add("in an hour", ticker.now_us() + 3_600_000_000)
    clock.add("now", ticker.now_us() + 1_000)
    await asyncio.wait_for(done.wait(), LIMIT_S)
    clock.stop()

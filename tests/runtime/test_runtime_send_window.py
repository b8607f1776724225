"""Requests to one receiver are sent in order, and no more bytes of them wait for an answer than allowed."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TurnwireError
from services.runtime.bus import Delivery
from services.runtime.requests import SendWindow
from tests.conftest import eventually
from tests.runtime.bus_clients import connected, serving

LIMIT = 1000
REQUESTS = st.tuples(
    st.integers(0, 30), st.integers(1, 2 * LIMIT), st.integers(0, 30), st.sampled_from([None, None, None, 0, 1, 9])
)
"""The tick in which a request comes, its bytes, the ticks until its answer, and those until it is cancelled."""


@given(st.lists(REQUESTS, max_size=30))
def test_no_more_bytes_than_the_limit_wait_for_an_answer(requests: list[tuple[int, int, int, int | None]]) -> None:
    sent: list[int] = []
    waiting: dict[int, int] = {}
    ended: set[int] = set()

    async def ticks(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def request(window: SendWindow, number: int, size: int, answer: int) -> None:
        try:
            async with window.room(size):
                sent.append(number)
                waiting[number] = size
                assert sum(waiting.values()) <= LIMIT or len(waiting) == 1
                try:
                    await ticks(answer)
                finally:
                    del waiting[number]
        finally:
            ended.add(number)

    async def play() -> None:
        window, tasks = SendWindow(LIMIT), []

        async def begin(number: int, size: int, answer: int, cancel: int | None) -> None:
            task = asyncio.create_task(request(window, number, size, answer))
            tasks.append(task)
            if cancel is not None:
                await ticks(cancel)
                task.cancel()

        cases = sorted(requests, key=lambda case: case[0])
        starts = []
        for number, (tick, *case) in enumerate(cases):
            await ticks(tick - (cases[number - 1][0] if number else 0))
            starts.append(asyncio.create_task(begin(number, *case)))
        await asyncio.gather(*starts)
        await asyncio.gather(*tasks, return_exceptions=True)
        for task, case in zip(tasks, cases, strict=True):
            assert case[3] is not None or task.exception() is None

    asyncio.run(play())
    assert sent == sorted(sent), "first come, first served"
    assert {number for number, case in enumerate(sorted(requests, key=lambda case: case[0])) if case[3] is None} <= {
        *sent
    }


@pytest.mark.parametrize(("limit", "kept"), [(512 << 10, True), (1 << 30, False)], ids=["bounded", "all at once"])
async def test_receiver_that_reads_late_is_not_disconnected(
    limit: int, kept: bool, nats_binary: str, tmp_path: Path
) -> None:
    """The server disconnects a client for which more than `max_pending` bytes wait."""
    with serving(nats_binary, tmp_path, "max_pending: 1MB") as address:
        async with connected(f"nats://{address}") as sender, connected(f"nats://{address}") as receiver:

            def reply(delivery: Delivery) -> None:
                delivery.reply(delivery.data[:3])

            await receiver.bus.subscribe("prompts", reply)
            await receiver.bus.flush()
            window, answers = SendWindow(limit), dict[int, bytes]()

            async def ask(number: int) -> None:
                data = b"%3d" % number + bytes(200_000)
                async with window.room(len(data)):
                    answers[number] = await sender.bus.request("prompts", data, 60 if kept else 2)

            transport = receiver.bus._client._transport._io_writer.transport  # type: ignore[union-attr]
            transport.pause_reading()  # as a process that is busy
            asking = [asyncio.create_task(ask(number)) for number in range(100)]
            await asyncio.sleep(0.3)
            if not transport.is_closing():
                transport.resume_reading()
            failures = [one for one in await asyncio.gather(*asking, return_exceptions=True) if one is not None]
            assert all(isinstance(one, TurnwireError) for one in failures)
            if kept:
                assert (failures, receiver.reconnects) == ([], 0)
            else:
                await eventually(lambda: receiver.reconnects == 1)
                assert failures
            assert list(answers) == sorted(answers)
            assert all(answer == b"%3d" % number for number, answer in answers.items())

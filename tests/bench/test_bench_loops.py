"""Closed and open loops: when requests are sent."""

import asyncio
import statistics
from itertools import pairwise

from bench.apis import APIS
from bench.client import Client, Target
from bench.loops import arrival_plan, closed_loop, open_loop
from bench.stub import Answer, closing, delta, opening, port_of, send, serve, steady

API = APIS["messages"]
MS = 1_000_000


class Gate:
    """Answers no request before `count` have arrived: only a client that does not wait for answers
    sends so many."""

    def __init__(self, count: int) -> None:
        self.bodies: list[bytes] = []
        self._count = count
        self._all = asyncio.Event()

    async def answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        if len(self.bodies) == self._count:
            self._all.set()
        await self._all.wait()
        await send(writer, [opening(), delta("a"), closing(1)])


async def client_of(answer: Answer) -> tuple[asyncio.Server, Client]:
    server = await serve(answer)
    return server, Client(Target("127.0.0.1", port_of(server)), API, timeout_s=30)


def test_arrivals_keep_the_rate() -> None:
    assert arrival_plan(10, 0.5, "even") == [0, 100 * MS, 200 * MS, 300 * MS, 400 * MS]
    plan = arrival_plan(100, 100, "poisson", seed=3)
    assert plan == arrival_plan(100, 100, "poisson", seed=3)
    assert plan != arrival_plan(100, 100, "poisson", seed=4)
    assert plan == sorted(plan)
    assert abs(len(plan) - 10_000) < 400  # four standard deviations
    gaps = [after - before for before, after in pairwise(plan)]
    assert 0.9 < statistics.stdev(gaps) / statistics.mean(gaps) < 1.1  # as exponential gaps have it


async def test_open_loop_does_not_wait_for_answers() -> None:
    plan = arrival_plan(2000, 0.02, "even")
    gate = Gate(len(plan))
    server, client = await client_of(gate.answer)
    done = await open_loop(client, lambda number: b"%d" % number, plan)
    assert [one.error for one in done] == [None] * len(plan)
    assert sorted(gate.bodies) == sorted(b"%d" % number for number in range(len(plan)))
    client.close()
    server.close()


async def test_open_loop_counts_latency_from_the_planned_moment() -> None:
    """The first answer comes last of all: the waiting of those that came before it is in their
    latencies."""
    plan = [0, 5 * MS, 40 * MS]
    gate = Gate(len(plan))
    server, client = await client_of(gate.answer)
    done = await open_loop(client, lambda number: b"{}", plan)
    start = done[0].due
    assert [one.due - start for one in done] == plan
    last_sent = done[2].sent - start
    for one, offset in zip(done, plan, strict=True):
        assert one.ttft_ms is not None
        assert one.ttft_ms * MS + offset >= last_sent >= plan[2]
    client.close()
    server.close()


async def test_a_client_that_is_late_does_not_hide_it() -> None:
    """Something else keeps the loop busy beyond the planned moments: `due` stays as planned,
    latencies grow."""
    server, client = await client_of(steady(1, 1))
    late: list[int] = []

    def body(number: int) -> bytes:
        if number == 1:  # holds the loop until the next two requests are overdue
            end = asyncio.get_running_loop().time() + 0.03
            while asyncio.get_running_loop().time() < end:
                pass
            late.append(number)
        return b"{}"

    done = await open_loop(client, body, [0, 1 * MS, 2 * MS])
    assert late == [1]
    assert [one.due - done[0].due for one in done] == [0, 1 * MS, 2 * MS]
    assert done[1].send_lag_ms >= 28
    assert (done[2].ttft_ms or 0) >= 28
    client.close()
    server.close()


async def test_closed_loop_has_one_request_for_each_client_at_a_time() -> None:
    running, most, bodies = 0, 0, []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        bodies.append(body)
        await asyncio.sleep(0)
        running -= 1
        await send(writer, [opening(), delta("a"), closing(1)])

    server, client = await client_of(answer)
    done = await closed_loop(client, lambda number: b"%d" % number, clients=4, each=5)
    assert all(one.finished for one in done)
    assert len(set(bodies)) == len(bodies) == 20
    assert 1 <= most <= 4
    client.close()
    server.close()

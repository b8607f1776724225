"""Runs a load on a site and measures it."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from bench.apis import Api
from bench.client import Client, Mode, Target
from bench.clocks import Marks
from bench.cpu import Memory, Meter, machine_busy_seconds, memory
from bench.exchange import Exchange
from bench.rows import Case, Row, make_row

QUIET = 0.15
"""Below this number of cores used by other work, the machine counts as idle."""


class Site(Struct, frozen=True):
    """A server to measure, and the facts about it."""

    target: Target
    api: Api
    model: str
    key: str | None = None
    pids: Mapping[str, int] = {}
    marks: Marks | None = None
    """None: the server plays no scripts of ours."""
    timeout_s: float = 120.0
    quiet_wait_s: float = 0.0
    """Longest wait for an idle machine before each case."""
    also: Sequence[Target] = ()
    """Further frontends of the same stack, for streams."""
    seed: int = 0
    """Makes this run's prompts different from those of earlier runs against the same server."""

    def client(self, mode: Mode) -> Client:
        """A client without connections yet."""
        headers = {}
        if self.key:
            headers = {"x-api-key": self.key, "authorization": f"Bearer {self.key}"}
        return Client(
            self.target,
            self.api,
            mode,
            also=self.also,
            headers=headers,
            timeout_s=self.timeout_s,
        )

    def memory(self) -> dict[str, Memory]:
        """Returns the memory of each process. Raises ProcessLookupError if one has ended."""
        return {name: memory(pid) for name, pid in self.pids.items()}


async def measured(
    site: Site,
    case: Case,
    run: Callable[[], Awaitable[list[Exchange]]],
    kept: list[Exchange] | None = None,
    *,
    sequence: bool = False,
) -> Row:
    """Runs a load and measures it. Garbage collection is off, so that its pauses do not count.

    `kept`: gets the exchanges. `sequence`: the requests follow each other.
    """
    await _quiet(site.quiet_wait_s)
    meter = Meter(site.pids)
    gc.collect()
    gc.disable()
    try:
        meter.start()
        exchanges = await run()
        cost = meter.stop()
    finally:
        gc.enable()
    if kept is not None:
        kept += exchanges
    return make_row(case, site.api, exchanges, cost, site.memory(), sequence=sequence)


async def _quiet(wait_s: float) -> None:
    """Returns once the machine is idle, or after `wait_s`."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        before = machine_busy_seconds()
        await asyncio.sleep(1)
        if machine_busy_seconds() - before < QUIET:
            return

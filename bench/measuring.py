"""Runs a load on a site and measures it."""

import gc
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from bench.apis import APIS, Api
from bench.client import Client, Mode, Target
from bench.clocks import Marks
from bench.cpu import Memory, Meter, memory
from bench.exchange import Exchange
from bench.rows import Case, Row, make_row
from bench.stack import Running


class Site(Struct, frozen=True):
    """A server to measure, and the facts about it."""

    target: Target
    api: Api
    model: str
    pids: Mapping[str, int] = {}
    marks: Marks | None = None
    """None: the server plays no scripts of ours."""
    seed: int = 0
    """Makes this run's prompts different from those of earlier runs against the same server."""

    def client(self, mode: Mode) -> Client:
        """A client without connections yet."""
        return Client(self.target, self.api, mode)

    def memory(self) -> dict[str, Memory]:
        """Returns the memory of each process. Raises ProcessLookupError if one has ended."""
        return {name: memory(pid) for name, pid in self.pids.items()}


def site_of(up: Running, seed: int) -> Site:
    """The site of a stack, for the Messages API. Other APIs replace `api`."""
    target = Target.of(up.url)
    return Site(target, APIS["messages"], up.model, up.pids, Marks(up.marks), seed)


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

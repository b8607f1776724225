"""Runs a load on a site and measures it; reads when the last tokens of a call left the engine."""

import gc
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from bench.apis import APIS, Api
from bench.client import Client, Mode, Target
from bench.cpu import Memory, Meter, memory
from bench.exchange import Exchange
from bench.rows import Case, Row, make_row
from bench.stack import Running

Mark: TypeAlias = Literal["body", "close"]
"""Which token: the last one of the call's inner form (`</function>`), after which nothing can
change the call, or the call's closer (`</tool_call>`)."""

MARKS: tuple[Mark, ...] = ("body", "close")


class Marks:
    """The file in which a script player writes `ID NAME NS` just before the next token leaves the
    engine, in the monotonic clock, which all processes of a machine share."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def left_at(self, mark: Mark, play_id: str) -> int | None:
        """Returns when that token of a play left, in ns; None: unknown. `play_id`: the directive's
        `id`."""
        found = None
        for line in self._path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) == 3 and words[0] == play_id and words[1] == mark:
                found = int(words[2])
        return found


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

"""Starts the sides of a comparison on this machine, with the same model directory and the same
scripts."""

import subprocess
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from bench import dynamo
from bench.apis import APIS
from bench.client import Target
from bench.clocks import Marks
from bench.cpu import stages
from bench.dynamo.stack import dynamo_stack
from bench.measuring import Site
from bench.parts import PARTS, Sizes
from bench.stack import ROOT, STATE, own_stack

OURS = "turnwire"
BASE = "base"
"""Another checkout of Turnwire, to compare a change with."""
FASTEST = ("--tokenizer", "fastokens")
"""Flags for Dynamo's frontend with which it is fastest."""
SERVED_AS = "bench/scripted"
SLOTS = 1100
"""Slots of our worker: more than the largest number of open streams, because the peer's worker has
no limit."""


class Up(Struct, frozen=True):
    """A running side."""

    site: Site
    """For the Messages API. Other APIs replace `api`."""
    start_s: float


class Side(Protocol):
    """One way to serve."""

    @property
    def name(self) -> str: ...

    @property
    def described(self) -> str:
        """Version and flags, for the results."""
        ...

    @property
    def parts(self) -> Container[str]:
        """The parts in which it is measured."""
        ...

    def fit(self, sizes: Sizes) -> Sizes:
        """Returns the sizes that this side can do."""
        ...

    def open(self) -> AbstractAsyncContextManager[Up]:
        """Starts the side, and ends it. Raises StackFailed."""
        ...


class Turnwire(Struct, frozen=True):
    """Our own stack."""

    model: Path
    flags: tuple[str, ...] = ()
    """More flags for `turnwire up`."""
    root: Path = ROOT
    """The checkout that runs."""
    name: str = OURS

    @property
    def described(self) -> str:
        return " ".join((f"Turnwire {version('turnwire')} ({commit(self.root)})", *self.flags))

    @property
    def parts(self) -> Container[str]:
        return PARTS

    def fit(self, sizes: Sizes) -> Sizes:
        return sizes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Up]:
        own = (f"--model={self.model}", f"--served-model-name={SERVED_AS}", f"--slots={SLOTS}")
        async with own_stack(
            (*own, f"--state-dir={STATE / self.name}", *self.flags), root=self.root
        ) as stack:
            site = _site(stack.url, stack.model, stages(stack.pid), stack.marks)
            yield Up(site, stack.start_s)


class Dynamo(Struct, frozen=True):
    """Dynamo with the scripted worker, or with its own mock engine."""

    python: Path
    model: Path
    flags: tuple[str, ...] = FASTEST
    """More flags for its frontend."""
    name: str = "dynamo"
    mock_engine: bool = False

    @property
    def described(self) -> str:
        engine = ("with its mock engine",) if self.mock_engine else ()
        return " ".join((f"Dynamo {dynamo.VERSION}", *self.flags, *engine))

    @property
    def parts(self) -> Container[str]:
        return ("stream",) if self.mock_engine else PARTS

    def fit(self, sizes: Sizes) -> Sizes:
        """Limits the mock engine, which has its own pace, to Messages."""
        if not self.mock_engine:
            return sizes
        return replace(sizes, delays_ms=(0.0,), side_streams=(), single_events=())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Up]:
        async with dynamo_stack(
            self.python, self.model, self.flags, mock_engine=self.mock_engine
        ) as stack:
            yield Up(_site(stack.url, stack.model, stack.pids, stack.marks), stack.start_s)


def commit(root: Path) -> str:
    """Returns the commit that is checked out, and whether files differ from it; "no commit" outside
    a repository."""
    command = ("git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "no commit"
    return found.stdout.strip() or "no commit"


def _site(url: str, model: str, pids: Mapping[str, int], marks: Path) -> Site:
    return Site(
        target=Target.of(url), api=APIS["messages"], model=model, pids=pids, marks=Marks(marks)
    )

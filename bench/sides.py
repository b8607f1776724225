"""The sides of a comparison on this machine, with the same model directory and the same scripts."""

import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct

from bench import dynamo
from bench.dynamo.stack import dynamo_stack
from bench.stack import ROOT, STATE, Running, own_stack

OURS = "turnwire"
BASE = "base"
"""Another checkout of Turnwire, to compare a change with."""
FASTEST = ("--tokenizer", "fastokens")
"""Flags for Dynamo's frontend with which it is fastest."""
SLOTS = 1100
"""Slots of our worker: more than the largest number of open streams, because the peer's worker has
no limit."""


class Side(Struct, frozen=True):
    """One way to serve."""

    name: str
    described: str
    """Version and flags, for the results."""
    open: Callable[[], AbstractAsyncContextManager[Running]]
    """Starts the side, and ends it. Raises StackFailed."""


def turnwire_side(
    model: Path, flags: tuple[str, ...] = (), root: Path = ROOT, name: str = OURS
) -> Side:
    """Our own stack. `flags`: more of them for `turnwire up`; `root`: the checkout that runs."""
    own = (f"--model={model}", f"--served-model-name={dynamo.MODEL}", f"--slots={SLOTS}")
    all_flags = (*own, f"--state-dir={STATE / name}", *flags)
    described = " ".join((f"Turnwire {version('turnwire')} ({commit(root)})", *flags))
    return Side(name, described, lambda: own_stack(all_flags, root=root))


def dynamo_side(python: Path, model: Path) -> Side:
    """Dynamo with the scripted worker."""
    described = " ".join((f"Dynamo {dynamo.VERSION}", *FASTEST))
    return Side("dynamo", described, lambda: dynamo_stack(python, model, FASTEST))


def commit(root: Path) -> str:
    """Returns the commit that is checked out, and whether files differ from it; "no commit" outside
    a repository."""
    command = ("git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "no commit"
    return found.stdout.strip() or "no commit"

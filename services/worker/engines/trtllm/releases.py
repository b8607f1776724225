"""Describes what a release of TensorRT-LLM accepts, ignores and refuses, from `releases.toml` and
the installed library.

Argument names, the scheduler's policies and the way to read statistics are found in the installed
library. Fields that a release accepts and ignores cannot be found there; the version decides.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Literal

import msgspec
from msgspec import Struct
from packaging.version import InvalidVersion, Version


class Release(Struct, frozen=True, forbid_unknown_fields=True, rename={"version": "since"}):
    """One release; in `releases.toml`, what changed with it. Sets hold argument names."""

    version: str
    llm: frozenset[str] = frozenset()
    """Arguments of the constructor."""
    removed: frozenset[str] = frozenset()
    """Names that are no longer in `llm`."""
    generate: frozenset[str] = frozenset()
    """Arguments of `generate_async`."""
    sampling: frozenset[str] = frozenset()
    """Arguments of `SamplingParams`."""
    ignored: dict[str, str] = {}
    """Names in `sampling` that have no effect, and the source of this information."""
    honoured: frozenset[str] = frozenset()
    """Names that are no longer in `ignored`."""
    waiting_queue_policy: frozenset[str] = frozenset()
    """Values of the scheduler's field."""
    statistics: Literal["iterator", "call"] | None = None
    """How to read statistics and KV events: with asynchronous iterators on the event loop, or calls
    on a thread. The other way blocks."""
    frees_paused: bool | None = None
    """Whether the scheduler may pause requests (MAX_UTILIZATION) without a loss: their KV blocks
    become free."""
    refuses_long_prompts: bool | None = None
    """Whether the error of a prompt that does not fit has the worker's window."""

    @property
    def name(self) -> str:
        """The release in messages."""
        return f"TensorRT-LLM {self.version}"

    def after(self, change: "Release") -> "Release":
        """Returns this release with the changes of a later one."""
        fields: dict[str, Any] = {}
        for name in self.__struct_fields__:
            old = getattr(self, name)
            new = getattr(change, name)
            if isinstance(old, frozenset | dict):
                fields[name] = old | new
            else:
                fields[name] = old if new is None else new
        fields["llm"] -= change.removed
        fields["ignored"] = {
            name: why for name, why in fields["ignored"].items() if name not in change.honoured
        }
        return Release(**fields)


def known_release(version: str) -> Release:
    """Returns the release of this version from `releases.toml`. A version that cannot be parsed
    counts as the oldest, which ignores most.

    Raises ValueError for a release that is too old.
    """
    content = files(__package__).joinpath("releases.toml").read_bytes()
    changes = msgspec.toml.decode(content, type=dict[str, list[Release]])["release"]
    oldest = Version(changes[0].version)
    try:
        installed = Version(version)
    except InvalidVersion:
        installed = oldest
    if installed < oldest:
        raise ValueError(f"TensorRT-LLM {version} is too old: Turnwire needs 1.2 or newer")
    applied = [change for change in changes if Version(change.version) <= installed]
    release = functools.reduce(Release.after, applied)
    return msgspec.structs.replace(release, version=version)


def installed_release(tensorrt_llm: Any, llmapi: Any) -> Release:
    """Describes the imported packages `tensorrt_llm` and `tensorrt_llm.llmapi`. Raises ValueError
    if they are too old."""
    release = known_release(str(getattr(tensorrt_llm, "__version__", "")))
    scheduler = getattr(llmapi, "SchedulerConfig", None)
    policies = release.waiting_queue_policy
    if scheduler is not None:
        policies = _policies(scheduler)
    return msgspec.structs.replace(
        release,
        llm=_fields(getattr(llmapi, "TorchLlmArgs", None)) or release.llm,
        generate=_parameters(tensorrt_llm.LLM.generate_async),
        sampling=_parameters(tensorrt_llm.SamplingParams),
        waiting_queue_policy=policies,
        statistics=_statistics() or release.statistics,
    )


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - {"self"}


def _fields(model: Any) -> frozenset[str]:
    """Returns the names of a pydantic model's fields."""
    return frozenset(getattr(model, "model_fields", None) or ())


def _policies(scheduler: Any) -> frozenset[str]:
    """Returns the policies that the scheduler accepts: its field may exist without a value."""
    accepted: set[str] = set()
    if "waiting_queue_policy" not in _fields(scheduler):
        return frozenset()
    for policy in ("fcfs", "priority"):
        try:
            scheduler(waiting_queue_policy=policy)
        except (TypeError, ValueError):
            continue
        accepted.add(policy)
    return frozenset(accepted)


def _statistics() -> Literal["iterator", "call"] | None:
    """Returns how statistics are read; None if this release has its proxy elsewhere."""
    try:
        proxy = importlib.import_module("tensorrt_llm.executor.proxy").GenerationExecutorProxy
    except (ImportError, AttributeError):
        return None
    # The proxy has this method as long as statistics come through a queue.
    return "iterator" if hasattr(proxy, "dispatch_stats_task") else "call"

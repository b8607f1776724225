"""Describes what a release of TensorRT-LLM takes, ignores and refuses, from `releases.toml` and the installed library.

Argument names, the scheduler's policies and the way statistics are read can be seen in the installed library, which
then decides. Fields that a release accepts and ignores cannot; for them the version counts.
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
    """One release; in the table, what changed with it. Sets hold argument names."""

    version: str
    source: str = ""
    llm: frozenset[str] = frozenset()
    """Of the constructor."""
    scheduler: frozenset[str] = frozenset()
    """In `scheduler_config`."""
    kv_cache: frozenset[str] = frozenset()
    """In `kv_cache_config`."""
    generate: frozenset[str] = frozenset()
    """Of `generate_async`."""
    sampling: frozenset[str] = frozenset()
    """Of `SamplingParams`."""
    ignored: dict[str, str] = {}
    """Names in `sampling` that change nothing, and the source of that."""
    honoured: frozenset[str] = frozenset()
    """Names that are not in `ignored` any more."""
    refused: dict[str, frozenset[str]] = {}
    """Values that the constructor refuses."""
    waiting_queue_policy: frozenset[str] = frozenset()
    """Values of the scheduler's field."""
    sampler_type: frozenset[str] = frozenset()
    statistics: Literal["iterator", "call"] | None = None
    """How statistics and KV events are read: by asynchronous iterators on the event loop, or by calls on a thread. The
    other way blocks."""
    reports_death: bool | None = None
    """Open requests get an error when the worker has died."""
    refuses_long_prompts: bool | None = None
    """The error of a prompt that does not fit has the worker's window."""

    def after(self, change: "Release") -> "Release":
        """This release with a later one's changes."""
        fields: dict[str, Any] = {}
        for name in self.__struct_fields__:
            old, new = getattr(self, name), getattr(change, name)
            fields[name] = old | new if isinstance(old, frozenset | dict) else old if new is None else new
        fields["ignored"] = {name: why for name, why in fields["ignored"].items() if name not in change.honoured}
        return Release(**fields)


def known_release(version: str) -> Release:
    """The release of this version in `releases.toml`. A version that cannot be read counts as the oldest, which ignores
    most.

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
    known = functools.reduce(Release.after, (change for change in changes if Version(change.version) <= installed))
    return msgspec.structs.replace(known, version=version)


def installed_release(tensorrt_llm: Any, llmapi: Any) -> Release:
    """The imported package `tensorrt_llm`, with its `tensorrt_llm.llmapi`. Raises ValueError if it is too old."""
    known = known_release(str(getattr(tensorrt_llm, "__version__", "")))
    scheduler = getattr(llmapi, "SchedulerConfig", None)
    return msgspec.structs.replace(
        known,
        llm=_fields(getattr(llmapi, "TorchLlmArgs", None)) or known.llm,
        generate=_parameters(tensorrt_llm.LLM.generate_async),
        sampling=_parameters(tensorrt_llm.SamplingParams),
        waiting_queue_policy=known.waiting_queue_policy if scheduler is None else _policies(scheduler),
        statistics=_statistics() or known.statistics,
    )


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - {"self"}


def _fields(model: Any) -> frozenset[str]:
    """Names of a pydantic model's fields."""
    return frozenset(getattr(model, "model_fields", None) or ())


def _policies(scheduler: Any) -> frozenset[str]:
    """The field may be there without the value."""
    found: set[str] = set()
    for policy in ("fcfs", "priority") if "waiting_queue_policy" in _fields(scheduler) else ():
        try:
            scheduler(waiting_queue_policy=policy)
        except (TypeError, ValueError):
            continue
        found.add(policy)
    return frozenset(found)


def _statistics() -> Literal["iterator", "call"] | None:
    """None: this release has its proxy elsewhere."""
    try:
        proxy = importlib.import_module("tensorrt_llm.executor.proxy").GenerationExecutorProxy
    except (ImportError, AttributeError):
        return None
    # The proxy has this method as long as statistics come through a queue.
    return "iterator" if hasattr(proxy, "dispatch_stats_task") else "call"

"""A `tensorrt_llm` as strict as the real one, of any release in `releases.toml`.

`Package(version)` has its modules; `root.LLM.last` is the engine that was built. Names and values
that the release lacks are refused as there; what it accepts and ignores is noted in
`Runtime.breaches`, for nothing may be sent in vain. It can only be imported on the main thread: the
real one initialises MPI there.
"""

import asyncio
import enum
import inspect
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, ClassVar

from services.worker.engines.trtllm.releases import Release, known_release

from .runtime import (
    EngineDeadError,
    Executor,
    RequestError,
    RequestOutput,
    Runtime,
    reports_death,
    since,
)

VERSIONS = ["1.2.1", "1.3.0rc7", "1.3.0rc15", "1.3.0rc24", "1.3.0rc26", "1.4.0rc1"]
"""One of each family: statistics by queue; by call; with priority; with penalties and min_p; the
image's; the newest known."""

_SCHEDULER = frozenset(
    {"capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config"}
)
_SCHEDULER_RC24 = frozenset({"use_python_scheduler", "enable_prefix_aware_scheduling"})
_KV_CACHE = frozenset(
    [
        "enable_block_reuse",
        "max_tokens",
        "max_attention_window",
        "free_gpu_memory_fraction",
        "host_cache_size",
        "event_buffer_max_size",
        "enable_partial_reuse",
        "copy_on_partial_reuse",
        "dtype",
        "tokens_per_block",
    ]
)
_DRAFTERS = ("NGram", "User_Provided")
"""Kinds of speculative decoding with which the ordinary sampler chooses."""
_MOST_LOGPROBS = 100
"""Since 1.3.0rc26."""
CAPACITY_POLICIES = frozenset({"GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"})
_SAMPLING_DEFAULTS = {
    "max_tokens": 32,
    "detokenize": True,
    "n": 1,
    "include_stop_str_in_output": False,
}


class Strict:
    """A pydantic model that forbids extra fields; `choices` are its enums."""

    model_fields: ClassVar[dict[str, Any]] = {}
    choices: ClassVar[Mapping[str, frozenset[str]]] = {}

    def __init__(self, **fields: Any) -> None:
        if unknown := sorted(set(fields) - set(self.model_fields)):
            raise ValueError(f"Extra inputs are not permitted: {unknown[0]}")
        for name, allowed in self.choices.items():
            if name in fields and fields[name] not in allowed:
                raise ValueError(f"{name}: Input should be {' or '.join(sorted(allowed))}")
        self.__dict__.update(fields)


def _strict(
    name: str, fields: frozenset[str], choices: Mapping[str, frozenset[str]] | None = None
) -> type[Strict]:
    return type(name, (Strict,), {"model_fields": dict.fromkeys(fields), "choices": choices or {}})


def _scheduler_config(release: Release) -> type[Strict]:
    policies = {
        "waiting_queue_policy": release.waiting_queue_policy,
        "capacity_scheduler_policy": CAPACITY_POLICIES,
    }
    own = {"waiting_queue_policy"} if release.waiting_queue_policy else set()
    newer = _SCHEDULER_RC24 if since(release, "1.3.0rc24") else set()
    return _strict("SchedulerConfig", _SCHEDULER | own | newer, policies)


def _kv_cache_config(release: Release) -> type[Strict]:
    return _strict(
        "KvCacheConfig",
        _KV_CACHE | ({"kv_events_config"} if since(release, "1.3.0rc27") else set()),
    )


def _signature(names: Sequence[str], *, first: Sequence[str] = ()) -> inspect.Signature:
    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in first]
    rest = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        for name in names
        if name not in first
    ]
    return inspect.Signature([*kinds, *rest])


class SamplingParams:
    """Fields by the release; `generate_async` changes the object, so that each belongs to one
    request."""

    names: ClassVar[frozenset[str]] = frozenset()
    most_logprobs: ClassVar[float] = float("inf")
    used: bool

    def __init__(self, **fields: Any) -> None:
        if unknown := sorted(set(fields) - self.names):
            raise TypeError(f"__init__() got an unexpected keyword argument {unknown[0]!r}")
        for name in self.names:
            setattr(self, name, fields.get(name, _SAMPLING_DEFAULTS.get(name)))
        self.used = False
        values: Any = self
        if values.top_k is not None and values.top_k < 0:
            raise ValueError("require top_k >= 0")
        if values.max_tokens < 1:
            raise ValueError("require max_tokens >= 1")
        if values.min_p is not None and not 0.0 <= values.min_p <= 1.0:
            raise ValueError("require 0 <= min_p <= 1")
        if values.top_p is not None and not 0.0 <= values.top_p <= 1.0:
            raise ValueError("require 0 <= top_p <= 1")
        if values.temperature is not None and not values.temperature >= 0.0:
            raise ValueError("require temperature >= 0")
        if values.logprobs is not None and not 0 <= values.logprobs <= self.most_logprobs:
            raise ValueError(f"logprobs must be less than or equal to {self.most_logprobs}")
        if values.end_id is not None and values.stop is not None:
            raise RuntimeError("stop is not processed by tokenizer")


class GuidedDecodingParams:
    def __init__(
        self,
        *,
        json: str | dict[str, Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        json_object: bool = False,
        structural_tag: str | None = None,
    ) -> None:
        self.json, self.regex, self.grammar = json, regex, grammar
        self.json_object, self.structural_tag = json_object, structural_tag
        if sum(bool(value) for value in vars(self).values()) != 1:
            raise ValueError("only one guide can be used")


class RangeConfig:
    def __init__(
        self, token_start: int, token_end: int | None, priority: int, duration_ms: timedelta | None
    ) -> None:
        self.token_start, self.token_end, self.priority, self.duration = (
            token_start,
            token_end,
            priority,
            duration_ms,
        )
        if not 0 <= priority <= 100 or (token_end is not None and token_end <= token_start):
            raise ValueError("invalid retention of a range")
        if duration_ms is not None and not isinstance(duration_ms, timedelta):
            raise TypeError("duration_ms must be a timedelta")


class KvCacheRetentionConfig:
    TokenRangeRetentionConfig = RangeConfig

    def __init__(
        self,
        token_range_retention_configs: list[RangeConfig],
        decode_retention_priority: int = 35,
        decode_duration_ms: timedelta | None = None,
    ) -> None:
        self.ranges = token_range_retention_configs
        self.decode = RangeConfig(0, None, decode_retention_priority, decode_duration_ms)
        if not all(isinstance(one, RangeConfig) for one in self.ranges):
            raise TypeError("incompatible constructor arguments")


class ConversationParams(Strict):
    model_fields: ClassVar[dict[str, Any]] = {"conversation_id": None}

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if (
            not isinstance(fields.get("conversation_id"), str)
            or not fields["conversation_id"].strip()
        ):
            raise ValueError("conversation_id must be non-empty")


_CACHE_ARGUMENTS: Mapping[str, type] = {
    "kv_cache_retention_config": KvCacheRetentionConfig,
    "conversation_params": ConversationParams,
}


class LLM:
    last: ClassVar["LLM | None"] = None
    release: ClassVar[Release]
    worker_window: ClassVar[int | None] = None
    """`max_seq_len` of the worker, where it is smaller than the parent's."""

    def __init__(self, model: object, **kwargs: Any) -> None:
        release = self.release
        if unknown := sorted(set(kwargs) - release.llm):
            raise ValueError(f"LLM got invalid argument: {unknown[0]}")
        scheduler = _scheduler_config(release)(**kwargs.get("scheduler_config") or {})
        cache = _kv_cache_config(release)(**kwargs.get("kv_cache_config") or {})
        policy = getattr(scheduler, "capacity_scheduler_policy", "GUARANTEED_NO_EVICT")
        if kwargs.get("kv_connector_config") and policy != "GUARANTEED_NO_EVICT":
            raise NotImplementedError(
                "KV connector is only supported with guaranteed no evict scheduler policy"
            )
        self.kwargs = kwargs
        self.cache = vars(cache)
        self.args = types.SimpleNamespace(max_seq_len=kwargs.get("max_seq_len"))
        self.runtime = Runtime(
            kwargs.get("max_batch_size", 2048),
            release,
            min(filter(None, (kwargs.get("max_seq_len"), self.worker_window)), default=None),
            by_priority=getattr(scheduler, "waiting_queue_policy", "fcfs") == "priority",
        )
        drafts = kwargs.get("speculative_config")
        if drafts and drafts["decoding_type"] not in _DRAFTERS:
            self.runtime.drafts = drafts
        if policy == "MAX_UTILIZATION" and not (
            release.frees_paused and kwargs.get("pipeline_parallel_size", 1) == 1
        ):
            self.runtime.breaches.append("paused requests keep their blocks")
        self._executor = Executor(self.runtime)
        self.shutdowns = 0
        type(self).last = self
        LLM.last = self
        if reports_death(release):
            self._check_health = lambda: not self.runtime.dead
            self.get_kv_cache_capacity = lambda: {
                "maxNumBlocks": 1024,
                "tokensPerBlock": 32,
                "maxNumTokens": 32768,
            }

    def generate_async(
        self, inputs: list[int], sampling_params: Any = None, **kwargs: Any
    ) -> RequestOutput:
        if unknown := sorted(set(kwargs) - self.release.generate):
            raise TypeError(f"generate_async() got an unexpected keyword argument {unknown[0]!r}")
        if self.shutdowns or self._executor.is_shutdown():
            raise RuntimeError("LLM is shutting down")
        assert kwargs.get("streaming")
        if not isinstance(inputs, list) or not isinstance(inputs[0], int):
            raise TypeError("prompt_token_ids must be a list of ints")
        if not 0.0 <= kwargs.get("priority", 0.5) <= 1.0:
            raise ValueError("priority must be in [0, 1]")
        trace = kwargs.get("trace_headers", {})
        if not isinstance(trace, dict) or not all(
            isinstance(text, str) for pair in trace.items() for text in pair
        ):
            raise TypeError("trace_headers must be a dict of strings")
        for name, kind in _CACHE_ARGUMENTS.items():
            if not isinstance(kwargs.get(name), kind | None):
                raise TypeError(f"{name} must be a {kind.__name__}")
        if sampling_params.guided_decoding is not None and not self.kwargs.get(
            "guided_decoding_backend"
        ):
            raise ValueError("guided_decoding_backend is not set")
        if sampling_params.used:
            raise AssertionError("SamplingParams were used before")
        sampling_params.used = True
        if self.runtime.dead and reports_death(self.release):
            raise EngineDeadError("the engine is dead")
        output = RequestOutput(
            self.runtime,
            inputs,
            sampling_params,
            kwargs.get("cache_salt"),
            kwargs.get("priority", 0.5),
        )
        output.cache_arguments = {name: kwargs[name] for name in _CACHE_ARGUMENTS if name in kwargs}
        self.runtime.submit(output)
        return output

    # Statistics and KV events: `what` is the runtime's queue of them.

    def get_stats(self, timeout: float = 2) -> list[dict[str, Any]]:
        return self._get("iterations", timeout)

    def get_kv_cache_events(self, timeout: float = 2) -> list[dict[str, Any]]:
        self._check_events()
        return self._get("events", timeout)

    def get_stats_async(self, timeout: float = 2) -> AsyncIterator[dict[str, Any]]:
        return self._follow("iterations", timeout)

    def get_kv_cache_events_async(self, timeout: float = 2) -> AsyncIterator[dict[str, Any]]:
        self._check_events()
        return self._follow("events", timeout)

    def _check_events(self) -> None:
        if not self.cache.get("event_buffer_max_size"):
            raise RuntimeError("event_buffer_max_size is 0")

    def _get(self, what: str, timeout: float) -> list[dict[str, Any]]:
        """Blocks the thread. By queue it returns when nothing has come for `timeout`, by call at
        the first data."""
        if threading.current_thread() is threading.main_thread():
            self.runtime.breaches.append(f"{what} read on the event loop's thread")
        if self.release.statistics == "iterator":
            self.runtime.breaches.append(f"{what} read by a call, which never returns under load")
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not self.runtime.dead and not self.runtime.down:
            if found := self.runtime.drain(what):
                return [] if what == "events" and self.cache.get("kv_events_config") else found
            time.sleep(0.01)
        return []

    async def _follow(self, what: str, timeout: float) -> AsyncIterator[dict[str, Any]]:
        """Ends when nothing has come for `timeout`, and until the next request."""
        if self.release.statistics == "call":
            self.runtime.breaches.append(f"{what} read by an iterator, which blocks the event loop")
        assert self.runtime.first_request, "nothing can be read before the first request"
        if self.runtime.read_out[what]:
            return
        silent = 0.0
        while silent < timeout:
            found = self.runtime.drain(what)
            for item in found:
                yield item
            silent = 0.0 if found else silent + 0.01
            await asyncio.sleep(0.01)
        self.runtime.read_out[what] = True

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.runtime.shutdown()


class Package(MetaPathFinder):
    """The modules of one release, to be put on `sys.meta_path`."""

    def __init__(self, version: str) -> None:
        release = known_release(version)
        parts = ("", ".llmapi", ".executor", ".executor.proxy", ".conversation_params")
        root, llmapi, executor, proxy, conversations = (
            types.ModuleType(f"tensorrt_llm{part}") for part in parts
        )
        self.root: Any = root
        self.modules = {module.__name__: module for module in (root, llmapi, executor, proxy)}
        if "conversation_params" in release.generate:
            self.modules[conversations.__name__] = conversations
            self._set(conversations, ConversationParams=ConversationParams)
        generate: Any = lambda self, *args, **kwargs: LLM.generate_async(self, *args, **kwargs)  # noqa: E731
        first = ["inputs", "sampling_params"]
        generate.__signature__ = _signature(sorted(release.generate), first=["self", *first])
        llm: Any = type(
            "LLM", (LLM,), {"release": release, "generate_async": generate, "last": None}
        )
        sampling: Any = type("SamplingParams", (SamplingParams,), {"names": release.sampling})
        if since(release, "1.3.0rc26"):
            sampling.most_logprobs = _MOST_LOGPROBS
        sampling.__signature__ = _signature(sorted(release.sampling))
        self._set(root, __version__=version, LLM=llm, SamplingParams=sampling, __path__=[])
        self._set(
            llmapi,
            RequestError=RequestError,
            GuidedDecodingParams=GuidedDecodingParams,
            KvCacheRetentionConfig=KvCacheRetentionConfig,
            TorchLlmArgs=_strict("TorchLlmArgs", release.llm),
            SchedulerConfig=_scheduler_config(release),
            KvCacheConfig=_kv_cache_config(release),
            WaitingQueuePolicy=enum.Enum(
                "WaitingQueuePolicy", sorted(release.waiting_queue_policy)
            ),
        )
        self._set(
            executor,
            __path__=[],
            **({"EngineDeadError": EngineDeadError} if reports_death(release) else {}),
        )
        by_queue = (
            {"dispatch_stats_task": lambda self: True} if release.statistics == "iterator" else {}
        )
        self._set(proxy, GenerationExecutorProxy=type("GenerationExecutorProxy", (), by_queue))

    @staticmethod
    def _set(module: Any, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(module, name, value)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return (
            ModuleSpec(name, _MainThreadLoader(self.modules[name]))
            if name in self.modules
            else None
        )

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        sys.meta_path.remove(self)
        for name in self.modules:
            sys.modules.pop(name, None)


class _MainThreadLoader(Loader):
    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        assert threading.current_thread() is threading.main_thread(), (
            "MPI is initialised on the importing thread"
        )

"""A `tensorrt_llm` of any release in `releases.toml`, with its traps: a result object changes in
place, and leaving its iterator stops nothing.

`Package(version)` has its modules; `root.LLM.last` is the engine that was built. Names that the
release lacks are refused as there; what it accepts and ignores is noted in `Runtime.breaches`.
"""

import asyncio
import inspect
import threading
import time
import types
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from services.worker.engines.trtllm.releases import Release, known_release
from tests.worker.fake_cache import FakeCache

VERSIONS = ["1.2.1", "1.3.0rc7", "1.3.0rc15", "1.3.0rc24", "1.3.0rc26", "1.4.0rc1"]
"""One of each family: statistics by queue; by call; with priority; with penalties and min_p; the
image's; the newest known."""
VOCAB = 512
BLOCK = 32
STEP_S = 0.0005
_SCHEDULER = {"capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config"}
_KV_CACHE = {"enable_block_reuse", "max_tokens", "free_gpu_memory_fraction"}
_KV_CACHE |= {"event_buffer_max_size", "kv_events_config", "tokens_per_block"}
_SAMPLING_DEFAULTS = {"max_tokens": 32, "include_stop_str_in_output": False}


def reports_death(release: Release) -> bool:
    """Whether open requests get an error when the worker has died: since 1.3.0rc24, as errors of
    long prompts."""
    return bool(release.refuses_long_prompts)


class RequestError(RuntimeError):
    """This request alone failed."""


class EngineDeadError(RuntimeError):
    """The engine is gone."""


class Strict:
    """A pydantic model that forbids extra fields."""

    model_fields: ClassVar[dict[str, Any]] = {}
    waiting_queue_policy: str = "fcfs"

    def __init__(self, **fields: Any) -> None:
        if unknown := sorted(set(fields) - set(self.model_fields)):
            raise ValueError(f"Extra inputs are not permitted: {unknown[0]}")
        self.__dict__.update(fields)


def _strict(name: str, fields: set[str] | frozenset[str]) -> type[Strict]:
    return type(name, (Strict,), {"model_fields": dict.fromkeys(fields)})


def _scheduler_config(release: Release) -> type[Strict]:
    if not release.waiting_queue_policy:
        return _strict("SchedulerConfig", _SCHEDULER)
    base = _strict("Base", _SCHEDULER | {"waiting_queue_policy"})

    class SchedulerConfig(base):  # type: ignore[valid-type, misc]
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            if self.waiting_queue_policy not in release.waiting_queue_policy:
                raise ValueError("waiting_queue_policy: Input should be one of its values")

    return SchedulerConfig


def _signature(*names: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


class SamplingParams:
    """Fields by the release."""

    names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **fields: Any) -> None:
        if unknown := sorted(set(fields) - self.names):
            raise TypeError(f"__init__() got an unexpected keyword argument {unknown[0]!r}")
        for name in self.names:
            setattr(self, name, fields.get(name, _SAMPLING_DEFAULTS.get(name)))
        values: Any = self
        if values.top_k is not None and values.top_k < 0:
            raise ValueError("require top_k >= 0")
        if values.max_tokens < 1:
            raise ValueError("require max_tokens >= 1")


@dataclass
class GuidedDecodingParams:
    json: str | dict[str, Any] | None = None
    grammar: str | None = None
    json_object: bool = False


@dataclass
class RangeConfig:
    token_start: int
    token_end: int | None
    priority: int
    duration: Any


class KvCacheRetentionConfig:
    TokenRangeRetentionConfig = RangeConfig

    def __init__(self, ranges: list[RangeConfig], decode_priority: int, decode_ms: Any) -> None:
        self.ranges = ranges
        self.decode = RangeConfig(0, None, decode_priority, decode_ms)


class LLM:
    last: ClassVar["LLM | None"] = None
    release: ClassVar[Release]

    def __init__(self, model: object, **kwargs: Any) -> None:
        release = self.release
        if unknown := sorted(set(kwargs) - release.llm):
            raise ValueError(f"LLM got invalid argument: {unknown[0]}")
        scheduler = _scheduler_config(release)(**kwargs.get("scheduler_config") or {})
        self.cache = kwargs.get("kv_cache_config") or {}
        _strict("KvCacheConfig", _KV_CACHE)(**self.cache)
        self.kwargs = kwargs
        self.args = types.SimpleNamespace(max_seq_len=kwargs.get("max_seq_len"))
        self.runtime = Runtime(
            kwargs.get("max_batch_size", 2048), release, kwargs.get("max_seq_len")
        )
        self.runtime.by_priority = scheduler.waiting_queue_policy == "priority"
        self.shutdowns = 0
        type(self).last = self
        LLM.last = self
        if reports_death(release):
            self._check_health = lambda: not self.runtime.dead
            self.get_kv_cache_capacity = lambda: {"maxNumTokens": 32768}

    def generate_async(
        self, inputs: list[int], sampling_params: Any = None, **kwargs: Any
    ) -> "RequestOutput":
        if unknown := sorted(set(kwargs) - self.release.generate):
            raise TypeError(f"generate_async() got an unexpected keyword argument {unknown[0]!r}")
        if self.shutdowns:
            raise RuntimeError("LLM is shutting down")
        assert kwargs.pop("streaming")
        assert isinstance(inputs, list)
        guided = sampling_params.guided_decoding is not None
        if guided and not self.kwargs.get("guided_decoding_backend"):
            raise ValueError("guided_decoding_backend is not set")
        if self.runtime.dead and reports_death(self.release):
            raise EngineDeadError("the engine is dead")
        salt, priority = kwargs.pop("cache_salt", None), kwargs.pop("priority", 0.5)
        output = RequestOutput(self.runtime, inputs, sampling_params, salt, priority)
        output.cache_arguments = kwargs
        self.runtime.submit(output)
        return output

    # Statistics and KV events: `what` is the runtime's queue of them.

    def get_stats(self, timeout: float = 2) -> list[dict[str, Any]]:
        return self._get("iterations", timeout)

    def get_kv_cache_events(self, timeout: float = 2) -> list[dict[str, Any]]:
        return self._get("events", timeout)

    def get_stats_async(self, timeout: float = 2) -> AsyncIterator[dict[str, Any]]:
        return self._follow("iterations", timeout)

    def get_kv_cache_events_async(self, timeout: float = 2) -> AsyncIterator[dict[str, Any]]:
        return self._follow("events", timeout)

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
                return found
            time.sleep(0.01)
        return []

    async def _follow(self, what: str, timeout: float) -> AsyncIterator[dict[str, Any]]:
        """Ends when nothing has come for `timeout`, and until the next request."""
        if self.release.statistics == "call":
            self.runtime.breaches.append(f"{what} read by an iterator, which blocks the event loop")
        assert self.runtime.first_request, "nothing can be read before the first request"
        if what in self.runtime.read_out:
            return
        silent = 0.0
        while silent < timeout:
            found = self.runtime.drain(what)
            for item in found:
                yield item
            silent = 0.0 if found else silent + 0.01
            await asyncio.sleep(0.01)
        self.runtime.read_out.add(what)

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.runtime.shutdown()


class Package:
    """The modules of one release by name, for `sys.modules`."""

    def __init__(self, version: str) -> None:
        release = known_release(version)
        self.root = self._module("", __version__=version, __path__=[])
        generate: Any = lambda self, *args, **kwargs: LLM.generate_async(self, *args, **kwargs)  # noqa: E731
        generate.__signature__ = _signature("self", *sorted(release.generate))
        members = {"release": release, "generate_async": generate, "last": None}
        self.root.LLM = type("LLM", (LLM,), members)
        sampling: Any = type("SamplingParams", (SamplingParams,), {"names": release.sampling})
        sampling.__signature__ = _signature(*sorted(release.sampling))
        self.root.SamplingParams = sampling
        self.root.llmapi = self._module(
            ".llmapi",
            RequestError=RequestError,
            GuidedDecodingParams=GuidedDecodingParams,
            KvCacheRetentionConfig=KvCacheRetentionConfig,
            TorchLlmArgs=_strict("TorchLlmArgs", release.llm),
            SchedulerConfig=_scheduler_config(release),
        )
        dead = {"EngineDeadError": EngineDeadError} if reports_death(release) else {}
        executor = self._module(".executor", __path__=[], **dead)
        by_queue = {"dispatch_stats_task": None} if release.statistics == "iterator" else {}
        proxy = self._module(".executor.proxy", GenerationExecutorProxy=type("Proxy", (), by_queue))
        modules = [self.root, self.root.llmapi, executor, proxy]
        self.modules = {module.__name__: module for module in modules}

    @staticmethod
    def _module(name: str, **contents: Any) -> Any:
        module = types.ModuleType(f"tensorrt_llm{name}")
        vars(module).update(contents)
        return module


@dataclass
class CompletionOutput:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class Response:
    tokens: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    cached: int = 0
    cut: int = 0


class RequestOutput:
    """Result, future and asynchronous iterator in one."""

    def __init__(
        self, engine: "Runtime", prompt: list[int], sampling: Any, salt: str | None, priority: float
    ) -> None:
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput(logprobs=[] if sampling.logprobs else None)]
        self.cached_tokens = 0
        self.cached_then = 0
        """Tokens found in the cache at its first step."""
        self.finished = False
        self.sampling = sampling
        self.salt = salt
        self.priority = priority
        self.cache_arguments: dict[str, Any] = {}
        self.aborts = 0
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Response | Exception] = asyncio.Queue()

    def aborted(self) -> bool:
        return self.aborts > 0

    def abort(self) -> None:
        self.aborts += 1
        self._engine.enqueue_abort(self)

    def deliver(self, response: Response | Exception) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, response)
        except RuntimeError:
            pass

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished:
            raise StopAsyncIteration
        response = await self._queue.get()
        if isinstance(response, Exception):
            raise response
        out = self.outputs[0]
        out.token_ids.extend(response.tokens)
        if out.logprobs is not None:
            out.logprobs += [self._logprobs(token) for token in response.tokens]
        if response.cut:
            del out.token_ids[-response.cut :]
        out.finish_reason, out.stop_reason = response.finish_reason, response.stop_reason
        self.cached_tokens = response.cached
        self.finished = response.finish_reason is not None
        return self

    def _logprobs(self, token: int) -> dict[int, Any]:
        others = range(1, max(2, self.sampling.logprobs))
        row = {token + n: types.SimpleNamespace(logprob=-1.5 - n) for n in others}
        return {**row, token: types.SimpleNamespace(logprob=-0.5)}


def next_token(tokens: Sequence[int]) -> int:
    """The model: a function of all tokens before."""
    return (sum(tokens[-7:]) * 31 + len(tokens) * 7 + 3) % VOCAB


class Runtime:
    """The worker process at the end of the queues: a thread that decodes, and a cache that
    reports."""

    def __init__(self, batch: int, release: Release, window: int | None) -> None:
        self.outputs: list[RequestOutput] = []
        """Every result object of a request that was taken."""
        self.waiting: deque[RequestOutput] = deque()
        self.running: dict[RequestOutput, list[int]] = {}
        self.aborts: deque[RequestOutput] = deque()
        self.cache = FakeCache(BLOCK)
        self.events: deque[dict[str, Any]] = deque()
        self.iterations: deque[dict[str, Any]] = deque()
        self.read_out: set[str] = set()
        """Queues of which reading has ended until the next request."""
        self.breaches: list[str] = []
        """What the adapter must not do, and did."""
        self.first_request = False
        self.iteration = 0
        self.held = False
        """True: decodes nothing, but lives."""
        self.dead = False
        self.down = False
        self.by_priority = False
        self.window = window
        self._batch = batch
        self._release = release
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="fake-trtllm")
        self._thread.start()

    def drain(self, what: str) -> list[dict[str, Any]]:
        queue: deque[dict[str, Any]] = getattr(self, what)
        return [queue.popleft() for _ in range(len(queue))]

    def submit(self, output: RequestOutput) -> None:
        sampling, prompt = output.sampling, len(output.prompt_token_ids)
        sent = {name for name in self._release.sampling if getattr(sampling, name) is not None}
        self.breaches += [f"{name} is ignored" for name in sent & set(self._release.ignored)]
        if not self.by_priority and output.priority != 0.5:
            self.breaches.append("priority is ignored")
        if self.window is not None and prompt >= self.window:
            words = f"`default_max_tokens` ({self.window - prompt}) = max_seq_len ({self.window}) -"
            output.deliver(RequestError(words))
            return
        if sampling.ignore_eos:
            sampling.end_id, sampling.stop_token_ids = -1, None
        with self._wake:
            self.first_request = True
            self.read_out.clear()
            self.outputs.append(output)
            self.waiting.append(output)
            self._wake.notify()

    def enqueue_abort(self, output: RequestOutput) -> None:
        with self._wake:
            self.aborts.append(output)
            self._wake.notify()

    def kill(self) -> None:
        with self._wake:
            self.dead = True
            pending = [*self.running, *self.waiting]
            self.running.clear()
            self.waiting.clear()
            self._wake.notify()
        if reports_death(self._release):
            for output in pending:
                output.deliver(EngineDeadError("MPI worker was killed"))

    def shutdown(self) -> None:
        with self._wake:
            self.down = True
            self._wake.notify()
        self._thread.join(5)

    def _has_work(self) -> bool:
        decodes = bool(self.running or self.waiting) and not self.held
        return self.down or self.dead or bool(self.aborts) or decodes

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._has_work():
                    self._wake.wait(0.05)
                if self.down or self.dead:
                    return
                while self.aborts:
                    self._abort(self.aborts.popleft())
                if not self.held:
                    self._step_all()
            time.sleep(STEP_S)

    def _abort(self, output: RequestOutput) -> None:
        if output in self.waiting:
            self.waiting.remove(output)
        elif self.running.pop(output, None) is None:
            return
        output.deliver(Response([], "cancelled"))

    def _step_all(self) -> None:
        while self.waiting and len(self.running) < self._batch:
            output = self.waiting.popleft()
            self.running[output] = list(output.prompt_token_ids)
        for output in list(self.running):
            self._step(output)
        self.iteration += 1
        blocks = {"usedNumBlocks": len(self.running), "maxNumBlocks": 100}
        self.iterations.append({"iter": self.iteration, "kvCacheStats": blocks})

    def _step(self, output: RequestOutput) -> None:
        tokens, sampling = self.running[output], output.sampling
        prompt = len(output.prompt_token_ids)
        if len(tokens) == prompt:
            output.cached_then = self.cache.match(tokens, output.salt)
            self._store(tokens, output.salt, 0)
        token = next_token(tokens)
        tokens.append(token)
        made = len(tokens) - prompt
        response = Response([token], cached=output.cached_then)
        honoured = "min_tokens" not in self._release.ignored
        allowed = (made if honoured else len(tokens)) > (sampling.min_tokens or 0)
        if token == sampling.end_id and not sampling.ignore_eos and allowed:
            response.finish_reason = "stop"
            # Releases may differ in that.
            response.tokens = [token] if reports_death(self._release) else []
        elif token in (sampling.stop_token_ids or []):
            response.finish_reason, response.stop_reason = "stop", token
            response.cut = 0 if sampling.include_stop_str_in_output else 1
        elif made >= sampling.max_tokens:
            response.finish_reason = "length"
        self._store(tokens[:-1], output.salt, prompt)
        if response.finish_reason:
            del self.running[output]
        output.deliver(response)

    def _store(self, tokens: list[int], salt: str | None, since: int) -> None:
        for block in self.cache.store(tokens, salt, since):
            ids = [{"token_id": token, "token_extra_id": 0} for token in block.ids]
            told = {"block_hash": block.hash, "tokens": ids, "cache_level": 0}
            data = {"type": "stored", "parent_hash": block.parent, "blocks": [told]}
            number = len(self.cache) - 1
            self.events.append({"event_id": number, "window_size": 4096, "data": data})

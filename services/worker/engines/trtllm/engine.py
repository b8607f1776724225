"""The TensorRT-LLM engine, over the LLM API (`tensorrt_llm.LLM`, PyTorch backend) of 1.2 and newer.

The process must guard its entry point with `if __name__ == "__main__"`: the constructor starts MPI
workers, which import the main module again. A process has one engine and one event loop:
`generate_async` binds each result to the running loop.

A `RequestError`, or an error that the library raises in this process while it reads a response,
ends only its request. The engine is dead when the library reports it (`EngineDeadError`, an
executor that is shut down) or raises any other error. Older releases report nothing when their
worker is killed; the watchdog detects it.
"""

import asyncio
import contextlib
import importlib
import re
import time
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from typing_extensions import override

from schemas.control import Load
from schemas.errors import ContextOverflow, EngineFailed, Invalid, TurnwireError
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.admission import check_room
from services.worker.engine import (
    FEATURES,
    Engine,
    EngineInfo,
    EngineRequest,
    EngineSupport,
    KvEvent,
    KvEventSource,
    Sink,
)
from services.worker.engines.support import (
    OpenTurn,
    OpenTurns,
    guided_arguments,
    in_daemon_thread,
    prompt_ids,
    run_for,
)
from services.worker.engines.trtllm import requests
from services.worker.engines.trtllm.events import KvTranslator, KvUse
from services.worker.engines.trtllm.pollers import Follower, KvEventQueue, LoopGuard, Poller
from services.worker.engines.trtllm.releases import Release, installed_release, known_release

WATCH_INTERVAL_S = 0.5
HEALTH_INTERVAL_S = 2.0
HEALTH_TIMEOUT_S = 30.0
STATS_INTERVAL_S = 0.5
KV_INTERVAL_S = 0.02
POLL_TIMEOUT_S = 0.5
FOLLOW_TIMEOUT_S = 600.0
"""Longer than any prefill: after a timeout the iterator yields nothing until the next request."""
FOLLOW_INTERVAL_S = 0.1
ABORT_SHARE = 0.25
"""Share of the time to stop in which aborted requests may end, before the engine is shut down."""
REFUSAL_TIMEOUT_S = 30.0
GUARD_S = 60.0
REQUEST_ERRORS = (
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Errors that the library raises in this process for one request, for example for an unknown finish
reason."""
_WORKER_WINDOW = re.compile(r"max_seq_len`? \((\d+)\)")
"""The window in the worker's refusal of a prompt that does not fit."""


class TrtllmEngine(Engine, KvEventSource):
    """An engine over `tensorrt_llm.LLM`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._turns = OpenTurns("trtllm", self._stop_reading)
        self._handles: dict[str, Any] = {}
        self._readers: list[Follower | Poller] = []
        self._guard: LoopGuard | None = None
        self._kv_queue = KvEventQueue()
        self._kv_use = KvUse()
        self._iteration: Any = None
        self._healthy_at = 0.0
        self._conversation_params: Any = None
        """The library's class, where ranks have caches of their own: it sends a session's turns to
        one rank."""
        self._llm: Any = None
        self._trtllm: Any = None
        self._llmapi: Any = None
        self._request_error: type[Exception]
        self._dead_error: type[Exception] | None = None
        self._window = 0
        """The worker's window, as far as this process has found it out."""
        self._library: Release
        self._facts: ModelFacts
        self._info: EngineInfo

    @staticmethod
    def explain(config: WorkerConfig) -> EngineSupport:
        """Explains the engine (`EngineSupport`) by the package's version: its import takes seconds
        and starts MPI."""
        try:
            release = known_release(version("tensorrt-llm"))
        except PackageNotFoundError:
            hint = "in a clone, pip install -e '.[trtllm]', or use deploy/trtllm.Dockerfile"
            raise Invalid(f"TensorRT-LLM is not installed: {hint}", param="engine") from None
        vocabulary = read_facts(config.model).vocab_size if config.model else 1
        lacks = requests.lacking(requests.llm_arguments(config, release), release, vocabulary)
        return EngineSupport(release.version, FEATURES - set(lacks), lacks)

    @override
    async def start(self) -> EngineInfo:
        """Builds the engine on a thread, so that Ctrl-C works: it loads, tunes and captures for
        minutes.

        Raises EngineFailed, with TensorRT-LLM's message, if it cannot be built; ImportError if it
        is not installed.
        """
        # On the main thread, because the import binds MPI to its thread; and only here, because it
        # takes seconds.
        self._trtllm = importlib.import_module("tensorrt_llm")
        self._llmapi = importlib.import_module("tensorrt_llm.llmapi")
        self._request_error = self._llmapi.RequestError
        self._dead_error = getattr(
            importlib.import_module("tensorrt_llm.executor"), "EngineDeadError", None
        )
        try:
            self._library = installed_release(self._trtllm, self._llmapi)
            if (self._config.engine_args or {}).get(
                "enable_attention_dp"
            ) and "conversation_params" in self._library.generate:
                module = importlib.import_module("tensorrt_llm.conversation_params")
                self._conversation_params = module.ConversationParams
            self._info = await in_daemon_thread(self._build, "trtllm-build")
            await self._probe_window()
        except Exception as error:
            raise EngineFailed(
                f"cannot load {self._config.model}: {type(error).__name__}: {error}"
            ) from error
        self._guard = LoopGuard(max(GUARD_S, self._config.watchdog_s))
        self._turns.watch(self._config.watchdog_s, self._late_health_check, WATCH_INTERVAL_S)
        return self._info

    @override
    def open(self, request: EngineRequest, sink: Sink) -> OpenTurn:
        check_room(len(request.token_ids), request.sampling.max_tokens or 0, self._window)
        turn = self._turns.open(request.id, sink, lambda: self._release(request.id))
        try:
            handle = self._handles[request.id] = self._submit(turn, request)
        except BaseException:
            turn.close()
            raise
        # TensorRT-LLM returns an iterator and nothing else, so that each turn needs a task.
        turn.run(self._pump(turn, handle, request))
        return turn

    def _release(self, turn_id: str) -> None:
        if (handle := self._handles.pop(turn_id, None)) is not None:
            _abort(handle)

    @override
    def load(self) -> Load:
        return self._turns.load(self._config.slots, self._config.queue_limit, self._kv_use.share)

    @override
    def healthy(self) -> bool:
        return self._turns.death is None

    @override
    def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        return self._kv_queue.read()

    @override
    async def stop(self, grace_s: float) -> None:
        """Stops as `Engine.stop`. A shutdown that takes longer continues on a daemon thread; the
        process should then end with `os._exit`, because TensorRT-LLM's exit handlers wait for it
        without a limit."""
        deadline = time.monotonic() + grace_s
        self._stop_reading()
        if self._guard is not None:
            self._guard.stop()
        for handle in self._handles.values():
            _abort(handle)
        # The engine answers an abort with a last response, and only then drops the request.
        if (tasks := self._turns.tasks()) and self.healthy():
            await asyncio.wait(tasks, timeout=grace_s * ABORT_SHARE)
        self._turns.stop()
        if self._llm is not None:
            await run_for(
                max(0.0, deadline - time.monotonic()),
                lambda: self._shutdown(deadline),
                "trtllm-shutdown",
            )

    def _submit(self, turn: OpenTurn, request: EngineRequest) -> Any:
        """Submits the request. TensorRT-LLM checks it at once, and may raise several kinds of
        errors."""
        arguments = requests.sampling_arguments(
            request, self._facts.sampling, self._facts.eos_ids, self._library
        )
        try:
            if (form := guided_arguments(request)) is not None:
                arguments["guided_decoding"] = self._llmapi.GuidedDecodingParams(**form)
            if request.sampling.logit_bias:
                row = requests.bias_row(request.sampling.logit_bias, self._facts.vocab_size or 0)
                arguments["embedding_bias"] = importlib.import_module("torch").tensor(row)
            sampling = self._trtllm.SamplingParams(**arguments)
            ids = prompt_ids(request, self._window)
            others = requests.generate_arguments(request, self._library) | self._cache_arguments(
                request
            )
            return self._llm.generate_async(ids, sampling, **others)
        except Exception as error:
            if self._is_death(error):
                turn.close()  # the exception reports the death to this turn
                self._turns.die(str(error))
                raise self._turns.died() from error
            if isinstance(error, (self._request_error, *REQUEST_ERRORS)):
                raise Invalid(f"TensorRT-LLM refused the request: {error}") from error
            raise EngineFailed(f"TensorRT-LLM: {error}") from error

    def _cache_arguments(self, request: EngineRequest) -> dict[str, Any]:
        """Makes the arguments about the KV cache that need classes of the library."""
        arguments: dict[str, Any] = {}
        if request.retain_s and "retention" in self._info.features:
            retention, lasts = (
                self._llmapi.KvCacheRetentionConfig,
                timedelta(seconds=request.retain_s),
            )
            prompt = retention.TokenRangeRetentionConfig(0, None, requests.RETAINED_PRIORITY, lasts)
            # The output, too: the next prompt begins with it.
            arguments["kv_cache_retention_config"] = retention(
                [prompt], requests.RETAINED_PRIORITY, lasts
            )
        if self._conversation_params is not None and request.session:
            arguments["conversation_params"] = self._conversation_params(
                conversation_id=request.session
            )
        return arguments

    async def _pump(self, turn: OpenTurn, handle: Any, request: EngineRequest) -> None:
        """Passes the iterator's outputs to the turn. Runs in a task, so that a silent engine can be
        given up."""
        progress = requests.Progress(request, self._facts.eos_ids)
        try:
            async for output in handle:
                # The library changes the same object in place: it must be read before the next
                # await.
                self._note_output()
                delta = progress.take(output)
                if delta.finish is FinishReason.LENGTH and progress.cut_at is not None:
                    self._window = min(self._window, progress.cut_at)
                turn.put(delta)
                if turn.ended:
                    return
            turn.fail(EngineFailed("TensorRT-LLM ended the request without a reason"))
        except EngineFailed as error:
            turn.fail(error)
        except Exception as error:
            if self._is_death(error) or not isinstance(
                error, (self._request_error, *REQUEST_ERRORS)
            ):
                self._turns.die(f"{type(error).__name__}: {error}")
            else:
                turn.fail(self._request_failure(request, error))

    def _is_death(self, error: Exception) -> bool:
        """Returns whether the library has given up the engine: it shuts down its executor if a
        worker or thread fails."""
        if self._dead_error is not None and isinstance(error, self._dead_error):
            return True
        is_shutdown = getattr(getattr(self._llm, "_executor", None), "is_shutdown", None)
        return "LLM is shutting down" in str(error) or (
            is_shutdown is not None and bool(is_shutdown())
        )

    def _request_failure(self, request: EngineRequest, error: Exception) -> TurnwireError:
        if match := _WORKER_WINDOW.search(str(error)):
            self._window = min(self._window, int(match[1]))
            try:
                # The one token of a prefill without output needs room, too.
                check_room(len(request.token_ids), request.sampling.max_tokens or 1, self._window)
            except ContextOverflow as overflow:
                return overflow
        return EngineFailed(f"TensorRT-LLM: {type(error).__name__}: {error}")

    def _note_output(self) -> None:
        self._turns.stepped()
        if not self._readers:  # statistics and events can only be read after the first response
            self._start_readers()

    def _start_readers(self) -> None:
        self._readers = [self._reader("get_stats", list, self._stats, STATS_INTERVAL_S)]
        if "kv_events" in self._info.features:
            translate = KvTranslator(self._info.block_tokens or requests.BLOCK_TOKENS).translate
            self._readers.append(
                self._reader("get_kv_cache_events", translate, self._kv_queue.put, KV_INTERVAL_S)
            )
        # Not public, and missing in early 1.2.
        if (check := getattr(self._llm, "_check_health", None)) is not None:
            self._healthy_at = time.monotonic()
            self._readers.append(
                Poller("trtllm-health", lambda: (bool(check()),), self._checked, HEALTH_INTERVAL_S)
            )

    def _reader(
        self,
        method: str,
        translate: Callable[[list[Any]], list[Any]],
        deliver: Callable[[list[Any]], None],
        interval_s: float,
    ) -> Follower | Poller:
        """Starts to read lists with one of the library's methods, in the way that suits the
        release."""
        if self._library.statistics == "iterator":
            follow = partial(getattr(self._llm, f"{method}_async"), FOLLOW_TIMEOUT_S)
            return Follower(follow, lambda items: deliver(translate(items)), FOLLOW_INTERVAL_S)
        poll = partial(getattr(self._llm, method), timeout=POLL_TIMEOUT_S)
        return Poller(f"trtllm-{method}", lambda: translate(poll() or []), deliver, interval_s)

    def _stats(self, iterations: list[Any]) -> None:
        for stats in iterations:
            if isinstance(stats, dict):
                self._kv_use.take(stats)
                if (
                    stats.get("iter") != self._iteration
                ):  # a long prefill has iterations without outputs
                    self._iteration = stats.get("iter")
                    self._turns.stepped()

    def _checked(self, health: tuple[bool]) -> None:
        self._healthy_at = time.monotonic()
        if not health[0]:
            self._turns.die("its health check failed")

    def _late_health_check(self) -> str | None:
        late = (
            self._healthy_at
            and time.monotonic() - self._healthy_at > HEALTH_INTERVAL_S + HEALTH_TIMEOUT_S
        )
        return f"its health check did not return in {HEALTH_TIMEOUT_S:.0f} s" if late else None

    def _stop_reading(self) -> None:
        for reader in self._readers:
            reader.stop()
        self._kv_queue.close()

    async def _probe_window(self) -> None:
        """Submits a prompt that cannot fit. The worker refuses it at once, and its error has the
        worker's window, which is smaller than this process's if the cache cannot hold more."""
        self._window = self._info.max_model_len
        if not self._library.refuses_long_prompts:
            return
        end_id = next(iter(self._facts.eos_ids), 0)
        sampling = self._trtllm.SamplingParams(
            max_tokens=1, end_id=end_id, pad_id=end_id, detokenize=False
        )
        handle = self._llm.generate_async([0] * self._window, sampling, streaming=True)
        try:
            async with asyncio.timeout(REFUSAL_TIMEOUT_S):
                await anext(handle)
        except (TimeoutError, StopAsyncIteration):
            pass
        except self._request_error as refusal:
            if match := _WORKER_WINDOW.search(str(refusal)):
                self._window = min(self._window, int(match[1]))
                self._info = msgspec.structs.replace(self._info, max_model_len=self._window)
        finally:
            _abort(handle)

    # Run on threads of their own:

    def _build(self) -> EngineInfo:
        config = self._config
        self._facts = read_facts(config.model)
        arguments = requests.llm_arguments(config, self._library)
        self._llm = self._trtllm.LLM(**arguments)
        own = getattr(self._llm, "args", None)
        window = config.max_model_len or getattr(own, "max_seq_len", None) or self._facts.window
        if not window:
            raise ValueError("the context window is not known: set max_model_len")
        lacks = requests.lacking(arguments, self._library, self._facts.vocab_size)
        offered = FEATURES - set(lacks)
        # The model's own defaults must not be sent either: newer releases would refuse every turn.
        takes = self._library.sampling - requests.unsampled(arguments)
        self._library = msgspec.structs.replace(self._library, sampling=takes)
        block = int(
            (arguments.get("kv_cache_config") or {}).get("tokens_per_block", requests.BLOCK_TOKENS)
        )
        return EngineInfo(
            name="trtllm",
            version=self._library.version,
            max_model_len=int(window),
            slots=config.slots,
            block_tokens=block if "prefix_cache" in offered else None,
            kv_tokens=self._capacity(),
            eos_ids=self._facts.eos_ids,
            features=offered,
            vocab_size=self._facts.vocab_size,
            lacking=lacks,
            full_len=int(window),
        )

    def _capacity(self) -> int | None:
        """Returns the cache's size in tokens, which newer releases report, else the configured one."""
        if hasattr(self._llm, "get_kv_cache_capacity"):
            with contextlib.suppress(Exception):
                return int(self._llm.get_kv_cache_capacity()["maxNumTokens"])
        return self._config.kv_tokens

    def _shutdown(self, deadline: float) -> None:
        for reader in self._readers:
            reader.join(max(0.0, min(POLL_TIMEOUT_S, deadline - time.monotonic())))
        self._llm.shutdown()


def _abort(handle: Any) -> None:
    """Stops the engine's work on a request; leaving the iterator would not. Returns at once."""
    if not handle.finished and not handle.aborted():
        with contextlib.suppress(Exception):
            handle.abort()

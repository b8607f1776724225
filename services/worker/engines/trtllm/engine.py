"""The TensorRT-LLM engine, over its LLM API (`tensorrt_llm.LLM`, PyTorch backend), 1.2 and newer.

The process must guard its entry point with `if __name__ == "__main__"`: the constructor starts MPI workers, which
import the main module again. One engine per process, one event loop: `generate_async` binds each result to the running
loop.

An error of one request ends that request: a `RequestError`, and what the library raises in this process while it reads
the response. The engine is dead when the library reports it (`EngineDeadError`, an executor that is shut down) or
raises anything else. Older releases report nothing when their worker is killed; the watchdog detects it.
"""

import asyncio
import contextlib
import importlib
import re
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from schemas.control import Load
from schemas.errors import ContextOverflow, EngineFailed, Invalid, TurnwireError
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.admission import check_room
from services.worker.engine import FEATURES, EngineInfo, EngineRequest, EngineSupport, KvEvent, Sink
from services.worker.engines.support import OpenTurn, OpenTurns, guided_arguments, in_daemon_thread, run_for
from services.worker.engines.trtllm import requests
from services.worker.engines.trtllm.events import KvTranslator, kv_used
from services.worker.engines.trtllm.pollers import Follower, KvEventQueue, LoopGuard, Poller
from services.worker.engines.trtllm.releases import Release, installed_release, known_release

WATCH_INTERVAL_S = 0.5
HEALTH_INTERVAL_S = 2.0
HEALTH_TIMEOUT_S = 30.0
STATS_INTERVAL_S = 0.5
KV_INTERVAL_S = 0.02
POLL_TIMEOUT_S = 0.5
FOLLOW_TIMEOUT_S = 600.0
"""Longer than any prefill: after a timeout nothing comes until the next request."""
FOLLOW_INTERVAL_S = 0.1
ABORT_SHARE = 0.25
"""Of the time to stop: for aborted requests to come back before the engine is shut down under them."""
REFUSAL_TIMEOUT_S = 30.0
GUARD_S = 60.0
REQUEST_ERRORS = (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""Raised in this process for one request: a finish reason that is unknown, log probabilities of another number."""
_WORKER_WINDOW = re.compile(r"max_seq_len`? \((\d+)\)")
"""In the worker's refusal of a prompt that does not fit."""


class TrtllmEngine:
    """`Engine` over `tensorrt_llm.LLM`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._turns = OpenTurns("trtllm", self._stop_reading)
        self._handles: dict[str, Any] = {}
        self._readers: list[Follower | Poller] = []
        self._guard: LoopGuard | None = None
        self._kv_queue = KvEventQueue()
        self._kv_used: float | None = None
        self._iteration: Any = None
        self._healthy_at = 0.0
        self._llm: Any = None
        self._trtllm: Any = None
        self._llmapi: Any = None
        self._request_error: type[Exception]
        self._dead_error: type[Exception] | None = None
        self._window = 0
        """The worker's, as far as it has shown."""
        self._library: Release
        self._facts: ModelFacts
        self._info: EngineInfo

    @staticmethod
    def explain(config: WorkerConfig) -> EngineSupport:
        """See `Explainable.explain`. By the package's version: importing it takes seconds and starts MPI."""
        try:
            release = known_release(version("tensorrt-llm"))
        except PackageNotFoundError:
            hint = "in a clone, pip install -e '.[trtllm]', or use deploy/trtllm.Dockerfile"
            raise Invalid(f"TensorRT-LLM is not installed: {hint}", param="engine") from None
        vocabulary = read_facts(config.model).vocab_size if config.model else 1
        lacks = requests.lacking(requests.llm_arguments(config, release), release, vocabulary)
        return EngineSupport(release.version, FEATURES - set(lacks), lacks)

    async def start(self) -> EngineInfo:
        """Builds the engine, which takes minutes (it loads, tunes and captures), on a thread: Ctrl-C works.

        Raises EngineFailed, with TensorRT-LLM's message, if it cannot be built; ImportError if it is not installed.
        """
        # Here, on the main thread: the import initialises MPI, which is bound to the thread that did it. Nowhere else:
        # the import alone takes seconds.
        self._trtllm = importlib.import_module("tensorrt_llm")
        self._llmapi = importlib.import_module("tensorrt_llm.llmapi")
        self._request_error = self._llmapi.RequestError
        self._dead_error = getattr(importlib.import_module("tensorrt_llm.executor"), "EngineDeadError", None)
        try:
            self._library = installed_release(self._trtllm, self._llmapi)
            self._info = await in_daemon_thread(self._build, "trtllm-build")
            await self._probe_window()
        except Exception as error:
            raise EngineFailed(f"cannot load {self._config.model}: {type(error).__name__}: {error}") from error
        self._guard = LoopGuard(max(GUARD_S, self._config.watchdog_s))
        self._turns.watch(self._config.watchdog_s, self._late_health_check, WATCH_INTERVAL_S)
        return self._info

    def open(self, request: EngineRequest, sink: Sink) -> OpenTurn:
        """See `Engine.open`."""
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

    def load(self) -> Load:
        """See `Engine.load`."""
        return self._turns.load(self._config.slots, self._config.queue_limit, self._kv_used)

    def healthy(self) -> bool:
        """See `Engine.healthy`."""
        return self._turns.death is None

    def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        """See `KvEventSource.kv_events`."""
        return self._kv_queue.read()

    async def stop(self, grace_s: float) -> None:
        """See `Engine.stop`. A shutdown that takes longer continues on a daemon thread; the process should then leave
        with `os._exit`, for TensorRT-LLM's own exit handlers wait for it without end."""
        deadline = time.monotonic() + grace_s
        for reader in self._readers:
            reader.stop()
        if self._guard is not None:
            self._guard.stop()
        for handle in self._handles.values():
            _abort(handle)
        # Engines answer an abort with a last response, and only then drop the request.
        if (tasks := self._turns.tasks()) and self.healthy():
            await asyncio.wait(tasks, timeout=grace_s * ABORT_SHARE)
        self._turns.stop()
        self._kv_queue.close()
        if self._llm is not None:
            await run_for(max(0.0, deadline - time.monotonic()), lambda: self._shutdown(deadline), "trtllm-shutdown")

    def _submit(self, turn: OpenTurn, request: EngineRequest) -> Any:
        """Submits the request; TensorRT-LLM checks it at once, and may raise half a dozen kinds of errors."""
        arguments = requests.sampling_arguments(request, self._facts.sampling, self._facts.eos_ids, self._library)
        try:
            if (form := guided_arguments(request)) is not None:
                arguments["guided_decoding"] = self._llmapi.GuidedDecodingParams(**form)
            if request.sampling.logit_bias:
                row = requests.bias_row(request.sampling.logit_bias, self._facts.vocab_size or 0)
                arguments["embedding_bias"] = importlib.import_module("torch").tensor(row)
            sampling = self._trtllm.SamplingParams(**arguments)
            ids = list(request.token_ids)
            return self._llm.generate_async(ids, sampling, **requests.generate_arguments(request, self._library))
        except Exception as error:
            if self._is_death(error):
                turn.close()  # the exception reports the death of this one
                self._turns.die(str(error))
                raise self._turns.died() from error
            if isinstance(error, (self._request_error, *REQUEST_ERRORS)):
                raise Invalid(f"TensorRT-LLM refused the request: {error}") from error
            raise EngineFailed(f"TensorRT-LLM: {error}") from error

    async def _pump(self, turn: OpenTurn, handle: Any, request: EngineRequest) -> None:
        """Passes the iterator's outputs to the turn. A task of its own, so that a silent engine can be given up."""
        progress = requests.Progress(request, self._facts.eos_ids)
        try:
            async for output in handle:
                # The same object each time, changed in place: it must be read before the next await.
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
            if self._is_death(error) or not isinstance(error, (self._request_error, *REQUEST_ERRORS)):
                self._turns.die(f"{type(error).__name__}: {error}")
            else:
                turn.fail(self._request_failure(request, error))

    def _is_death(self, error: Exception) -> bool:
        """Whether the library has given the engine up. It shuts its executor down when a worker or thread failed."""
        if self._dead_error is not None and isinstance(error, self._dead_error):
            return True
        is_shutdown = getattr(getattr(self._llm, "_executor", None), "is_shutdown", None)
        return "LLM is shutting down" in str(error) or (is_shutdown is not None and bool(is_shutdown()))

    def _request_failure(self, request: EngineRequest, error: Exception) -> TurnwireError:
        if found := _WORKER_WINDOW.search(str(error)):
            self._window = min(self._window, int(found[1]))
            try:
                # The one token of a prefill without output needs a place, too.
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
            self._readers.append(self._reader("get_kv_cache_events", translate, self._kv_queue.put, KV_INTERVAL_S))
        # Not public, and not in early 1.2.
        if (check := getattr(self._llm, "_check_health", None)) is not None:
            self._healthy_at = time.monotonic()
            self._readers.append(Poller("trtllm-health", lambda: (bool(check()),), self._checked, HEALTH_INTERVAL_S))

    def _reader(
        self,
        method: str,
        translate: Callable[[list[Any]], list[Any]],
        deliver: Callable[[list[Any]], None],
        interval_s: float,
    ) -> Follower | Poller:
        """Reads a list again and again by one of the library's methods, in the way that suits the release."""
        if self._library.statistics == "iterator":
            follow = partial(getattr(self._llm, f"{method}_async"), FOLLOW_TIMEOUT_S)
            return Follower(follow, lambda found: deliver(translate(found)), FOLLOW_INTERVAL_S)
        poll = partial(getattr(self._llm, method), timeout=POLL_TIMEOUT_S)
        return Poller(f"trtllm-{method}", lambda: translate(poll() or []), deliver, interval_s)

    def _stats(self, iterations: list[Any]) -> None:
        last = iterations[-1]
        if not isinstance(last, dict):
            return
        used = kv_used(last)
        self._kv_used = self._kv_used if used is None else used
        if last.get("iter") != self._iteration:  # in a long prefill there are no outputs, but iterations
            self._iteration = last.get("iter")
            self._turns.stepped()

    def _checked(self, health: tuple[bool]) -> None:
        self._healthy_at = time.monotonic()
        if not health[0]:
            self._turns.die("its health check failed")

    def _late_health_check(self) -> str | None:
        late = self._healthy_at and time.monotonic() - self._healthy_at > HEALTH_INTERVAL_S + HEALTH_TIMEOUT_S
        return f"its health check did not return in {HEALTH_TIMEOUT_S:.0f} s" if late else None

    def _stop_reading(self) -> None:
        for reader in self._readers:
            reader.stop()
        self._kv_queue.close()

    async def _probe_window(self) -> None:
        """Submits a prompt that cannot fit. The worker refuses it at once, and its error has the worker's window, which
        may be smaller than the one in this process's configuration: the cache may not hold more."""
        self._window = self._info.max_model_len
        if not self._library.refuses_long_prompts:
            return
        end_id = next(iter(self._facts.eos_ids), 0)
        sampling = self._trtllm.SamplingParams(max_tokens=1, end_id=end_id, pad_id=end_id, detokenize=False)
        handle = self._llm.generate_async([0] * self._window, sampling, streaming=True)
        try:
            async with asyncio.timeout(REFUSAL_TIMEOUT_S):
                await anext(handle)
        except (TimeoutError, StopAsyncIteration):
            pass
        except self._request_error as refusal:
            if found := _WORKER_WINDOW.search(str(refusal)):
                self._window = min(self._window, int(found[1]))
                self._info = msgspec.structs.replace(self._info, max_model_len=self._window)
        finally:
            _abort(handle)

    # On threads of their own.

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
        block = int((arguments.get("kv_cache_config") or {}).get("tokens_per_block", requests.BLOCK_TOKENS))
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
        )

    def _capacity(self) -> int | None:
        """The cache's size in tokens, as newer releases report it; else the configured one."""
        if hasattr(self._llm, "get_kv_cache_capacity"):
            with contextlib.suppress(Exception):
                return int(self._llm.get_kv_cache_capacity()["maxNumTokens"])
        return self._config.kv_tokens

    def _shutdown(self, deadline: float) -> None:
        for reader in self._readers:
            reader.join(max(0.0, min(POLL_TIMEOUT_S, deadline - time.monotonic())))
        self._llm.shutdown()


def _abort(handle: Any) -> None:
    """Stops the engine's work on a request, which leaving the iterator does not. Returns at once."""
    if not handle.finished and not handle.aborted():
        with contextlib.suppress(Exception):
            handle.abort()

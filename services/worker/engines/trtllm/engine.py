"""The TensorRT-LLM engine, over its LLM API (`tensorrt_llm.LLM`, PyTorch backend), 1.2 to 2026's main.

The process must guard its entry point with `if __name__ == "__main__"`: the constructor starts MPI workers, which
import the main module again. One engine per process, one event loop: `generate_async` binds each result to the running
loop.

An error of the call or a `RequestError` ends that request alone; anything else that an iterator raises means that the
engine is gone. Up to 1.2.1 an engine whose worker was killed reports nothing; the watchdog detects it.
"""

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from schemas.control import Load
from schemas.errors import EngineFailed, Invalid
from services.runtime.config import WorkerConfig
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.engine import EngineInfo, EngineRequest, KvEvent, Sink
from services.worker.engines.support import OpenTurn, OpenTurns, in_daemon_thread
from services.worker.engines.trtllm.events import KvTranslator, kv_used
from services.worker.engines.trtllm.pollers import KvEventQueue, Poller
from services.worker.engines.trtllm.requests import (
    BLOCK_TOKENS,
    Progress,
    bias_row,
    features,
    generate_arguments,
    guided_arguments,
    llm_arguments,
    sampling_arguments,
)
from services.worker.engines.trtllm.signature import Capabilities, probe

WATCH_INTERVAL_S = 0.5
HEALTH_INTERVAL_S = 2.0
HEALTH_TIMEOUT_S = 30.0
STATS_INTERVAL_S = 0.5
KV_INTERVAL_S = 0.02
POLL_TIMEOUT_S = 2.0
ABORT_SHARE = 0.25
"""Of the time to stop: for aborted requests to come back before the engine is shut down under them."""


class TrtllmEngine:
    """`Engine` over `tensorrt_llm.LLM`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._turns = OpenTurns("trtllm")
        self._handles: dict[str, Any] = {}
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._pollers: list[Poller] = []
        self._kv_queue: KvEventQueue | None = None
        self._kv_used: float | None = None
        self._iteration: Any = None
        self._progress_at = 0.0
        self._healthy_at = 0.0
        self._watcher: asyncio.Task[None] | None = None
        self._llm: Any = None
        self._trtllm: Any = None
        self._llmapi: Any = None
        self._request_error: type[Exception]
        self._can: Capabilities
        self._facts: ModelFacts
        self._info: EngineInfo

    async def start(self) -> EngineInfo:
        """Builds the engine, which takes minutes (it loads, tunes and captures), on a thread: heartbeats continue.

        Raises EngineFailed, with TensorRT-LLM's message, if it cannot be built; ImportError if it is not installed.
        """
        try:
            self._info = await in_daemon_thread(self._build, "trtllm-build")
        except ImportError:
            raise
        except Exception as error:
            raise EngineFailed(f"cannot load {self._config.model}: {type(error).__name__}: {error}") from error
        self._kv_queue = KvEventQueue()
        self._watcher = asyncio.create_task(self._watch())
        return self._info

    def open(self, request: EngineRequest, sink: Sink) -> OpenTurn:
        """See `Engine.open`."""
        turn = self._turns.open(request.id, sink, lambda: self._release(request.id))
        try:
            if len(self._turns) == 1:
                self._progress_at = time.monotonic()  # the engine was idle, not silent
            handle = self._handles[request.id] = self._submit(turn, request)
        except BaseException:
            turn.close()
            raise
        # TensorRT-LLM returns an iterator and nothing else, so that each turn needs a task.
        pump = asyncio.create_task(self._pump(turn, handle, Progress(request, self._facts.eos_ids)))
        self._pumps[request.id] = pump
        return turn

    def _release(self, turn_id: str) -> None:
        handle, pump = self._handles.pop(turn_id, None), self._pumps.pop(turn_id, None)
        if pump is not None and pump is not asyncio.current_task():
            pump.cancel()
        if handle is not None:
            _abort(handle)

    def load(self) -> Load:
        """See `Engine.load`."""
        running = min(len(self._turns), self._config.slots)
        return Load(
            running=running,
            waiting=len(self._turns) - running,
            slots=self._config.slots,
            queue_limit=self._config.queue_limit,
            kv_used=self._kv_used,
        )

    def healthy(self) -> bool:
        """See `Engine.healthy`."""
        return self._turns.death is None

    async def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        """What the KV cache holds, as it changes, until the engine stops. For one reader."""
        if self._kv_queue is not None:
            async for event in self._kv_queue.read():
                yield event

    async def stop(self, grace_s: float) -> None:
        """See `Engine.stop`. A shutdown that takes longer continues on a daemon thread; the process should then leave
        with `os._exit`, for TensorRT-LLM's own exit handlers wait for it without end."""
        deadline = time.monotonic() + grace_s
        if self._watcher is not None:
            self._watcher.cancel()
        for poller in self._pollers:
            poller.stop()
        for handle in self._handles.values():
            _abort(handle)
        # Engines answer an abort with a last response, and only then drop the request.
        if self._pumps and self.healthy():
            await asyncio.wait(self._pumps.values(), timeout=grace_s * ABORT_SHARE)
        self._turns.stop()
        if self._kv_queue is not None:
            self._kv_queue.close()
        if self._llm is not None:
            with contextlib.suppress(TimeoutError):
                stopping = in_daemon_thread(lambda: self._shutdown(deadline), "trtllm-shutdown")
                await asyncio.wait_for(stopping, max(0.0, deadline - time.monotonic()))

    def _submit(self, turn: OpenTurn, request: EngineRequest) -> Any:
        """Submits the request; TensorRT-LLM checks it at once, and may raise half a dozen kinds of errors."""
        arguments = sampling_arguments(request, self._facts.sampling, self._facts.eos_ids, self._can)
        try:
            if request.guided is not None:
                form = guided_arguments(request.guided)
                arguments["guided_decoding"] = self._llmapi.GuidedDecodingParams(**form)
            if request.sampling.logit_bias:
                row = bias_row(request.sampling.logit_bias, self._facts.vocab_size or 0)
                arguments["embedding_bias"] = importlib.import_module("torch").tensor(row)
            sampling = self._trtllm.SamplingParams(**arguments)
            ids = list(request.token_ids)
            return self._llm.generate_async(ids, sampling, **generate_arguments(request, self._can))
        except (self._request_error, ValueError, TypeError, NotImplementedError) as error:
            raise Invalid(f"TensorRT-LLM refused the request: {error}") from error
        except RuntimeError as error:
            if "shutting down" in str(error):
                turn.close()  # the exception reports the death to this one
                self._die(str(error))
                raise self._turns.died() from error
            raise EngineFailed(f"TensorRT-LLM: {error}") from error

    async def _pump(self, turn: OpenTurn, handle: Any, progress: Progress) -> None:
        """Passes the iterator's outputs to the turn. A task of its own, so that a silent engine can be given up."""
        try:
            async for output in handle:
                # The same object each time, changed in place: it must be read before the next await.
                self._alive()
                turn.put(progress.take(output))
                if turn.ended:
                    return
            turn.fail(EngineFailed("TensorRT-LLM ended the request without saying why"))
        except self._request_error as error:
            turn.fail(EngineFailed(f"TensorRT-LLM: {error}"))
        except EngineFailed as error:
            turn.fail(error)
        except Exception as error:
            self._die(f"{type(error).__name__}: {error}")

    def _alive(self) -> None:
        self._progress_at = time.monotonic()
        if not self._pollers:  # statistics and events can only be read after the first response
            self._poll()

    def _poll(self) -> None:
        llm = self._llm
        stats = Poller("trtllm-stats", lambda: llm.get_stats(timeout=POLL_TIMEOUT_S), self._stats, STATS_INTERVAL_S)
        self._pollers.append(stats)
        if "kv_events" in self._info.features:
            translator = KvTranslator(self._info.block_tokens or BLOCK_TOKENS)
            self._pollers.append(
                Poller(
                    "trtllm-kv",
                    lambda: translator.translate(llm.get_kv_cache_events(timeout=POLL_TIMEOUT_S) or []),
                    self._kv_queue.put if self._kv_queue else lambda events: None,
                    KV_INTERVAL_S,
                )
            )
        # Not public, and not in early 1.2.
        if hasattr(llm, "_check_health"):
            self._healthy_at = time.monotonic()
            self._pollers.append(
                Poller("trtllm-health", lambda: (bool(llm._check_health()),), self._checked, HEALTH_INTERVAL_S)
            )

    def _stats(self, iterations: list[Any]) -> None:
        last = iterations[-1]
        if not isinstance(last, dict):
            return
        used = kv_used(last)
        self._kv_used = self._kv_used if used is None else used
        if last.get("iter") != self._iteration:  # in a long prefill there are no outputs, but iterations
            self._iteration = last.get("iter")
            self._progress_at = time.monotonic()

    def _checked(self, health: tuple[bool]) -> None:
        self._healthy_at = time.monotonic()
        if not health[0]:
            self._die("its health check failed")

    async def _watch(self) -> None:
        """Detects an engine that died without a report: no request has outputs any more."""
        while self.healthy():
            await asyncio.sleep(WATCH_INTERVAL_S)
            self._judge()

    def _judge(self) -> None:
        now = time.monotonic()
        if self._turns and now - self._progress_at > self._config.watchdog_s:
            self._die(f"it said nothing for {self._config.watchdog_s:.0f} s")
        elif self._healthy_at and now - self._healthy_at > HEALTH_INTERVAL_S + HEALTH_TIMEOUT_S:
            self._die(f"its health check did not return in {HEALTH_TIMEOUT_S:.0f} s")

    def _die(self, reason: str) -> None:
        self._turns.die(reason)
        for poller in self._pollers:
            poller.stop()
        if self._kv_queue is not None:
            self._kv_queue.close()

    # On threads of their own.

    def _build(self) -> EngineInfo:
        config = self._config
        # Imported only here: the import alone starts MPI.
        self._trtllm = importlib.import_module("tensorrt_llm")
        self._llmapi = importlib.import_module("tensorrt_llm.llmapi")
        self._request_error = self._llmapi.RequestError
        self._can = probe(self._trtllm, self._llmapi)
        self._facts = read_facts(config.model)
        arguments = llm_arguments(config, self._can)
        self._llm = self._trtllm.LLM(**arguments)
        own = getattr(self._llm, "args", None)
        window = config.max_model_len or getattr(own, "max_seq_len", None) or self._facts.window
        if not window:
            raise ValueError("the context window is not known: set max_model_len")
        offered = features(arguments, self._can, self._facts.vocab_size)
        cache = arguments.get("kv_cache_config") or {}
        return EngineInfo(
            name="trtllm",
            version=str(getattr(self._trtllm, "__version__", "")),
            max_model_len=int(window),
            slots=config.slots,
            block_tokens=int(cache.get("tokens_per_block", BLOCK_TOKENS)) if "prefix_cache" in offered else None,
            kv_tokens=self._capacity(),
            eos_ids=self._facts.eos_ids,
            features=offered,
            vocab_size=self._facts.vocab_size,
        )

    def _capacity(self) -> int | None:
        """The cache's size in tokens, as newer releases report it; else the configured one."""
        if hasattr(self._llm, "get_kv_cache_capacity"):
            with contextlib.suppress(Exception):
                return int(self._llm.get_kv_cache_capacity()["maxNumTokens"])
        return self._config.kv_tokens

    def _shutdown(self, deadline: float) -> None:
        for poller in self._pollers:
            poller.join(max(0.0, min(POLL_TIMEOUT_S, deadline - time.monotonic())))
        self._llm.shutdown()


def _abort(handle: Any) -> None:
    """Stops the engine's work on a request, which leaving the iterator does not. Returns at once."""
    if not handle.finished and not handle.aborted():
        with contextlib.suppress(Exception):
            handle.abort()

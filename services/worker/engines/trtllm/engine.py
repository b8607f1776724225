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
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from typing_extensions import override

from schemas.control import Load
from schemas.errors import ContextOverflow, EngineFailed, Invalid, TurnwireError
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.engine import (
    Engine,
    EngineInfo,
    EngineRequest,
    EngineSupport,
    Sink,
    load_failure,
)
from services.worker.engines.arguments import guided_arguments, prompt_ids
from services.worker.engines.daemon_threads import in_daemon_thread, run_for
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.engines.trtllm import requests
from services.worker.engines.trtllm.library import TrtllmLibrary, WorkerWindow
from services.worker.engines.trtllm.loop_guard import LoopGuard
from services.worker.engines.trtllm.readings import EngineReaders
from services.worker.engines.trtllm.releases import known_release
from services.worker.features import FEATURES
from services.worker.kv.events import KvEvent

WATCH_INTERVAL_S = 0.5
ABORT_SHARE = 0.25
"""Share of the time to stop in which aborted requests may end, before the engine is shut down."""
REFUSAL_TIMEOUT_S = 30.0
GUARD_S = 60.0


class TrtllmEngine(Engine):
    """An engine over `tensorrt_llm.LLM`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._turns = OpenTurns("trtllm", self._stop_reading)
        self._readings = EngineReaders(self._turns)
        self._handles: dict[str, Any] = {}
        """Turn → the library's iterator over its outputs."""
        self._guard: LoopGuard | None = None
        self._llm: Any = None
        self._library: TrtllmLibrary
        self._window: WorkerWindow
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

    # -- start and stop

    @override
    async def start(self) -> EngineInfo:
        """Builds the engine on a thread, so that Ctrl-C works: it loads, tunes and captures for
        minutes.

        Raises EngineFailed, with TensorRT-LLM's message, if it cannot be built; ImportError if it
        is not installed.
        """
        self._library = TrtllmLibrary()
        engine_args = self._config.engine_args or {}
        try:
            self._library.read_release(has_ranks=bool(engine_args.get("enable_attention_dp")))
            self._info = await in_daemon_thread("trtllm-build", self._build)
            await self._probe_window()
        except Exception as error:
            raise load_failure(self._config.model, error) from error
        self._guard = LoopGuard(max(GUARD_S, self._config.watchdog_s))
        self._turns.watch(
            self._config.watchdog_s, self._readings.late_health_check, WATCH_INTERVAL_S
        )
        return self._info

    def _build(self) -> EngineInfo:
        """Builds the engine. Runs on a thread of its own."""
        config = self._config
        library = self._library
        self._facts = read_facts(config.model)
        arguments = requests.llm_arguments(config, library.release)
        self._llm = library.tensorrt_llm.LLM(**arguments)
        built_with = getattr(self._llm, "args", None)
        window = (
            config.max_model_len or getattr(built_with, "max_seq_len", None) or self._facts.window
        )
        if not window:
            raise ValueError("the context window is not known: set max_model_len")

        lacks = requests.lacking(arguments, library.release, self._facts.vocab_size)
        features = FEATURES - set(lacks)
        # The model's own defaults must not be sent either: newer releases would refuse every turn.
        accepted = library.release.sampling - requests.unsampled(arguments)
        library.release = msgspec.structs.replace(library.release, sampling=accepted)

        cache = arguments.get("kv_cache_config") or {}
        block_tokens = int(cache.get("tokens_per_block", requests.BLOCK_TOKENS))
        return EngineInfo(
            name="trtllm",
            version=library.release.version,
            max_model_len=int(window),
            slots=config.slots,
            block_tokens=block_tokens if "prefix_cache" in features else None,
            kv_tokens=self._capacity(),
            eos_ids=self._facts.eos_ids,
            features=features,
            vocab_size=self._facts.vocab_size,
            lacking=lacks,
            full_len=int(window),
        )

    def _capacity(self) -> int | None:
        """Returns the cache's size in tokens, which newer releases report, else the configured
        one."""
        if hasattr(self._llm, "get_kv_cache_capacity"):
            with contextlib.suppress(Exception):
                return int(self._llm.get_kv_cache_capacity()["maxNumTokens"])
        return self._config.kv_tokens

    async def _probe_window(self) -> None:
        """Submits a prompt that cannot fit. The worker refuses it at once, and its error has the
        worker's window."""
        self._window = WorkerWindow(self._info.max_model_len)
        library = self._library
        if not library.release.refuses_long_prompts:
            return
        end_id = next(iter(self._facts.eos_ids), 0)
        sampling = library.tensorrt_llm.SamplingParams(
            max_tokens=1, end_id=end_id, pad_id=end_id, detokenize=False
        )
        handle = self._llm.generate_async([0] * self._window.tokens, sampling, streaming=True)
        try:
            async with asyncio.timeout(REFUSAL_TIMEOUT_S):
                await anext(handle)
        except (TimeoutError, StopAsyncIteration):
            pass
        except library.request_error as refusal:
            if self._window.read(refusal):
                window = self._window.tokens
                self._info = msgspec.structs.replace(self._info, max_model_len=window)
        finally:
            _abort(handle)

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
        tasks = self._turns.tasks()
        if tasks and self.healthy():
            await asyncio.wait(tasks, timeout=grace_s * ABORT_SHARE)
        self._turns.stop()
        if self._llm is not None:
            rest_s = max(0.0, deadline - time.monotonic())
            await run_for(rest_s, "trtllm-shutdown", self._shutdown, deadline)

    def _stop_reading(self) -> None:
        self._readings.stop()

    def _shutdown(self, deadline: float) -> None:
        """Shuts the library down. Runs on a thread of its own."""
        self._readings.join(deadline)
        self._llm.shutdown()

    # -- what it reports

    @override
    def load(self) -> Load:
        config = self._config
        return self._turns.load(config.slots, config.queue_limit, self._readings.kv_used)

    @override
    def death(self) -> str | None:
        return self._turns.death

    @override
    def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        return self._readings.kv_events.read()

    # -- turns

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        self._window.check(len(request.token_ids), request.sampling.max_tokens or 0)
        turn = self._turns.open(request.id, sink, partial(self._release, request.id))
        try:
            handle = self._submit(turn, request)
        except BaseException:
            turn.close()
            raise
        self._handles[request.id] = handle
        # TensorRT-LLM returns an iterator and nothing else, so that each turn needs a task.
        turn.run(self._pump(turn, handle, request))
        return turn

    def _release(self, turn_id: str) -> None:
        handle = self._handles.pop(turn_id, None)
        if handle is not None:
            _abort(handle)

    def _submit(self, turn: EngineTurn, request: EngineRequest) -> Any:
        """Submits the request. TensorRT-LLM checks it at once, and may raise several kinds of
        errors."""
        sampling = requests.sampling_arguments(
            request, self._facts.sampling, self._facts.eos_ids, self._library.release
        )
        try:
            return self._generate(request, sampling)
        except Exception as error:
            if self._library.is_death(error, self._llm):
                turn.close()  # the exception reports the death to this turn
                self._turns.die(str(error))
                raise self._turns.died() from error
            if self._library.is_of_one_request(error):
                raise Invalid(f"TensorRT-LLM refused the request: {error}") from error
            raise EngineFailed(f"TensorRT-LLM: {error}") from error

    def _generate(self, request: EngineRequest, sampling: dict[str, Any]) -> Any:
        form = guided_arguments(request)
        if form is not None:
            sampling["guided_decoding"] = self._library.llmapi.GuidedDecodingParams(**form)
        if request.sampling.logit_bias:
            row = requests.bias_row(request.sampling.logit_bias, self._facts.vocab_size or 0)
            sampling["embedding_bias"] = importlib.import_module("torch").tensor(row)
        arguments = requests.generate_arguments(request, self._library.release)
        return self._llm.generate_async(
            prompt_ids(request, self._window.tokens),
            self._library.tensorrt_llm.SamplingParams(**sampling),
            **arguments,
            **self._cache_arguments(request),
        )

    def _cache_arguments(self, request: EngineRequest) -> dict[str, Any]:
        """Makes the arguments about the KV cache that need classes of the library."""
        arguments: dict[str, Any] = {}
        if request.retain_s and "retention" in self._info.features:
            retention = self._library.llmapi.KvCacheRetentionConfig
            priority = requests.RETAINED_PRIORITY
            lasts = timedelta(seconds=request.retain_s)
            prompt = retention.TokenRangeRetentionConfig(0, None, priority, lasts)
            # The output, too: the next prompt begins with it.
            arguments["kv_cache_retention_config"] = retention([prompt], priority, lasts)
        conversation_params = self._library.conversation_params
        if conversation_params is not None and request.session:
            conversation = conversation_params(conversation_id=request.session)
            arguments["conversation_params"] = conversation
        return arguments

    async def _pump(self, turn: EngineTurn, handle: Any, request: EngineRequest) -> None:
        """Passes the iterator's outputs to the turn. Runs in a task, so that a silent engine can be
        given up."""
        progress = requests.TrtllmProgress(request, self._facts.eos_ids)
        try:
            async for output in handle:
                self._turns.stepped()
                self._readings.begin(self._llm, self._library.release, self._info)
                # The library changes the same object in place: it must be read before the next
                # await.
                delta = progress.read(output)
                if delta.finish is FinishReason.LENGTH and progress.cut_at is not None:
                    self._window.reduce(progress.cut_at)
                turn.put(delta)
                if turn.ended:
                    return
            turn.fail(EngineFailed("TensorRT-LLM ended the request without a reason"))
        except EngineFailed as error:
            turn.fail(error)
        except Exception as error:
            library = self._library
            if library.is_death(error, self._llm) or not library.is_of_one_request(error):
                self._turns.die(f"{type(error).__name__}: {error}")
            else:
                turn.fail(self._request_failure(request, error))

    def _request_failure(self, request: EngineRequest, error: Exception) -> TurnwireError:
        if self._window.read(error):
            try:
                # The one token of a prefill without output needs room, too.
                self._window.check(len(request.token_ids), request.sampling.max_tokens or 1)
            except ContextOverflow as overflow:
                return overflow
        return EngineFailed(f"TensorRT-LLM: {type(error).__name__}: {error}")


def _abort(handle: Any) -> None:
    """Stops the engine's work on a request; leaving the iterator would not. Returns at once."""
    if not handle.finished and not handle.aborted():
        with contextlib.suppress(Exception):
            handle.abort()

"""The vLLM engine, over `AsyncLLM`, 0.32 and 0.33, on a GPU or a CPU.

vLLM runs the model in a process of its own, which sends each step's outputs to this one over ZMQ. The process must
guard its entry point with `if __name__ == "__main__"`: the engine's processes import the main module again.
"""

import dataclasses
import importlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any

from schemas.control import Load
from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from services.runtime.config import WorkerConfig
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.engine import FEATURES, EngineInfo, EngineRequest, EngineSupport, KvEvent, Sink
from services.worker.engines.support import OpenTurn, OpenTurns, decode_one, guided_arguments, in_daemon_thread, run_for
from services.worker.engines.vllm.kv_reader import KvEventReader
from services.worker.engines.vllm.parent import PLUGIN
from services.worker.engines.vllm.requests import (
    Progress,
    engine_arguments,
    lacking,
    prompt_ids,
    publishes_events,
    sampling_arguments,
)

STOP_SHARE = 0.5
"""Of the time to stop: for vLLM's processes to end by themselves."""
DEATH = "its process has ended; the log has vLLM's own error"
PRIORITY_STEPS = 1000
"""vLLM's whole priorities for a difference of 1 between ours."""


class VllmEngine:
    """`Engine` over `AsyncLLM`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._turns = OpenTurns("vllm")
        self._reader: KvEventReader | None = None
        self._kv_used: float | None = None
        self._llm: Any = None
        self._vllm: _Names
        self._facts: ModelFacts
        self._info: EngineInfo

    @staticmethod
    def explain(config: WorkerConfig) -> EngineSupport:
        """See `Explainable.explain`. Imports vLLM, which takes ten seconds or more."""
        names = _Names()
        arguments = engine_arguments(config)
        if unknown := sorted(arguments.keys() - {field.name for field in dataclasses.fields(names.engine_args)}):
            raise ValueError(f"engine_args: vLLM {names.version} has no argument {', '.join(unknown)}")
        lacks = lacking(arguments, names.sampling.__struct_fields__)
        return EngineSupport(names.version, FEATURES - lacks.keys(), lacks)

    async def start(self) -> EngineInfo:
        """Builds the engine, which takes a minute or more (it loads, compiles and captures), on a thread, and decodes a
        token.

        Raises EngineFailed, with vLLM's message, if it cannot be built; ImportError if it is not installed.
        """
        arguments = engine_arguments(self._config)
        if publishes_events(arguments):
            self._reader = KvEventReader()
        try:
            self._info = await in_daemon_thread(lambda: self._build(arguments), "vllm-build")
            # Some code is compiled at the first request only, for log probabilities for minutes on a slow CPU.
            await decode_one(self, Sampling(max_tokens=1, logprobs=0))
        except Exception as error:
            await self.stop(1.0)
            if isinstance(error, ImportError):
                raise
            raise EngineFailed(f"cannot load {self._config.model}: {type(error).__name__}: {error}") from error
        # Not before the first token, which may take longer than the watchdog waits.
        self._turns.watch(self._config.watchdog_s, lambda: DEATH if self._llm.errored else None)
        return self._info

    def open(self, request: EngineRequest, sink: Sink) -> OpenTurn:
        """See `Engine.open`."""
        turn = self._turns.open(request.id, sink)
        try:
            outputs = self._submit(request)
        except Exception:
            turn.close()
            raise
        # vLLM returns an iterator and nothing else. Cancelling the task closes it, and that aborts the request.
        turn.run(self._pump(turn, outputs, Progress(request)))
        return turn

    def load(self) -> Load:
        """See `Engine.load`."""
        return self._turns.load(self._info.slots, self._config.queue_limit, self._kv_used)

    def healthy(self) -> bool:
        """See `Engine.healthy`."""
        return self._turns.death is None

    async def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        """See `KvEventSource.kv_events`."""
        if self._reader is not None and self._info.block_tokens is not None:
            async for event in self._reader.read(self._info.block_tokens):
                yield event

    async def stop(self, grace_s: float) -> None:
        """See `Engine.stop`. Whatever is left of vLLM's processes then ends with this one (`parent`)."""
        self._turns.stop()
        if self._reader is not None:
            self._reader.close()
        llm, self._llm = self._llm, None
        if llm is not None:
            await run_for(grace_s, lambda: llm.shutdown(timeout=grace_s * STOP_SHARE), "vllm-shutdown")

    def _submit(self, request: EngineRequest) -> Any:
        """An iterator over the request's outputs. vLLM checks some values here, and the others at the first step."""
        names = self._vllm
        arguments = sampling_arguments(request, self._facts.sampling)
        try:
            if (form := guided_arguments(request)) is not None:
                arguments["structured_outputs"] = names.structured_outputs(**form)
            sampling = names.sampling(output_kind=names.delta, **arguments)
        except (names.client_error, ValueError, TypeError) as error:
            raise Invalid(_refusal(error)) from error
        ids = prompt_ids(request, self._info.max_model_len)
        prompt = names.tokens_input(ids, cache_salt=request.cache_salt)
        # vLLM's priorities are whole numbers, and the smaller ones are sooner.
        priority = -round(request.priority * PRIORITY_STEPS)
        return self._llm.generate(prompt, sampling, request.id, priority=priority)

    async def _pump(self, turn: OpenTurn, outputs: Any, progress: Progress) -> None:
        """Passes the outputs to the turn."""
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    self._turns.stepped()
                    turn.put(progress.take(output))
                    if turn.ended and not output.finished:
                        return
            turn.fail(EngineFailed("vLLM ended the request without a reason"))
        except self._vllm.client_error as error:
            turn.fail(Invalid(_refusal(error)))
        except self._vllm.dead_error:
            self._turns.die(DEATH)
        except EngineFailed as error:
            turn.fail(error)
        except Exception as error:
            turn.fail(EngineFailed(f"vLLM: {error.__cause__ or error!r}"))

    def _stepped(self, stats: Any) -> None:
        """A step has been run, also one of a long prefill, which has no outputs."""
        self._turns.stepped()
        if stats is not None:
            self._kv_used = min(1.0, float(stats.kv_cache_usage))

    def _build(self, arguments: dict[str, Any]) -> EngineInfo:
        """On a thread of its own."""
        _set_environment(os.environ)
        self._facts = read_facts(self._config.model)
        self._vllm = names = _Names()
        events = None
        if self._reader is not None:
            events = names.kv_events_config(
                enable_kv_cache_events=True, publisher="zmq", endpoint=self._reader.endpoint
            )
        self._llm = llm = names.engine.from_engine_args(
            names.engine_args(**{"kv_events_config": events, **_as_configs(arguments, names.engine_args)}),
            stat_loggers=[_step_logger(names.stat_logger, self._stepped)],
        )
        config = llm.vllm_config
        cache, scheduler = config.cache_config, config.scheduler_config
        lacks = lacking(arguments, names.sampling.__struct_fields__, caches=bool(cache.enable_prefix_caching))
        return EngineInfo(
            name="vllm",
            version=names.version,
            max_model_len=config.model_config.max_model_len,
            slots=scheduler.max_num_seqs,
            block_tokens=cache.block_size if "prefix_cache" not in lacks else None,
            kv_tokens=cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size,
            eos_ids=self._facts.eos_ids,
            features=FEATURES - lacks.keys(),
            vocab_size=config.model_config.get_vocab_size(),
            lacking=lacks,
        )


class _Names:
    """The parts of vLLM that are used. Importing it takes ten seconds or more."""

    def __init__(self) -> None:
        load = importlib.import_module
        sampling, exceptions = load("vllm.sampling_params"), load("vllm.v1.engine.exceptions")
        self.version = str(load("vllm").__version__)
        self.engine: Any = load("vllm.v1.engine.async_llm").AsyncLLM
        self.engine_args: Any = load("vllm.engine.arg_utils").AsyncEngineArgs
        self.kv_events_config: Any = load("vllm.config.kv_events").KVEventsConfig
        self.tokens_input: Any = load("vllm.inputs").tokens_input
        self.stat_logger: Any = load("vllm.v1.metrics.loggers").StatLoggerBase
        self.sampling: Any = sampling.SamplingParams
        self.structured_outputs: Any = sampling.StructuredOutputsParams
        self.delta: Any = sampling.RequestOutputKind.DELTA
        self.client_error: type[Exception] = load("vllm.exceptions").VLLMClientError
        self.dead_error: type[Exception] = exceptions.EngineDeadError


def _step_logger(base: Any, on_step: Callable[[Any], None]) -> Any:
    """A class for vLLM's `stat_loggers`, which calls `on_step` with the scheduler's statistics (None: not now)."""

    class StepLogger(base):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, *_args: Any, **_more: Any) -> None:
            on_step(scheduler_stats)

        def log_engine_initialized(self) -> None:
            pass

    return StepLogger


def _as_configs(arguments: Mapping[str, Any], engine_args: Any) -> dict[str, Any]:
    """The arguments with an object of vLLM's in place of a JSON object, where vLLM takes no other."""
    made = dict(arguments)
    for field in dataclasses.fields(engine_args):
        if isinstance(made.get(field.name), Mapping) and not isinstance(field.type, str):
            from pydantic import TypeAdapter  # vLLM's own dependency

            made[field.name] = TypeAdapter(field.type).validate_python(made[field.name])
    return made


def _refusal(error: Exception) -> str:
    return f"vLLM refused the request: {error.args[0] if error.args else error!r}"


def _set_environment(environ: MutableMapping[str, str]) -> None:
    """vLLM's settings are environment variables, which it reads when it is imported."""
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # it would report its use to its makers
    # A fork of a process with threads may inherit a lock that nothing releases.
    environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    plugins = environ.get("VLLM_PLUGINS")
    if plugins and PLUGIN not in plugins.split(","):
        environ["VLLM_PLUGINS"] = f"{plugins},{PLUGIN}"

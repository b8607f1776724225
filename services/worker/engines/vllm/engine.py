"""The vLLM engine, over `AsyncLLM` of 0.32 and 0.33, on a GPU or a CPU.

vLLM runs the model in a process of its own, which sends each step's outputs to this one over ZMQ.
This process must guard its entry point with `if __name__ == "__main__"`: vLLM's processes import
the main module again.
"""

import dataclasses
import importlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from typing_extensions import override

from schemas.control import VISION, Load
from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid, TurnwireError
from services.runtime.config.stages import WorkerConfig
from services.tokenization.image_processor import ImageProcessor, NoVision
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.engine import (
    Engine,
    EngineInfo,
    EngineRequest,
    EngineSupport,
    Sink,
    load_failure,
)
from services.worker.engines.arguments import guided_arguments, integer_priority, prompt_ids
from services.worker.engines.daemon_threads import in_daemon_thread, run_for
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.engines.trial import decode_trial
from services.worker.engines.vllm.image_renderer import ImageRenderer
from services.worker.engines.vllm.parent import set_environment
from services.worker.engines.vllm.requests import (
    VllmProgress,
    adapter_paths,
    engine_arguments,
    lacking,
    publishes_events,
    sampling_arguments,
)
from services.worker.engines.zmq_events.reader import LocalKvReader
from services.worker.features import FEATURES
from services.worker.kv.events import KvEvent

STOP_SHARE = 0.5
"""Share of the time to stop in which vLLM's processes may end by themselves."""
DEATH = "its process has ended; the log has vLLM's own error"


class VllmEngine(Engine):
    """An engine over `AsyncLLM`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._turns = OpenTurns("vllm")
        self._reader: LocalKvReader | None = None
        self._images: ImageRenderer | None = None
        self._kv_used: float | None = None
        self._adapters: dict[str, Any] = {}
        """vLLM's `LoRARequest`s by name."""
        self._llm: Any = None
        self._vllm: _VllmNames
        self._facts: ModelFacts
        self._info: EngineInfo

    @staticmethod
    def explain(config: WorkerConfig) -> EngineSupport:
        """Explains the engine (`EngineSupport`). Imports vLLM, which takes ten seconds or more."""
        names = _VllmNames()
        arguments = engine_arguments(config)
        fields = {field.name for field in dataclasses.fields(names.engine_args)}
        unknown = sorted(arguments.keys() - fields)
        if unknown:
            raise ValueError(
                f"engine_args: vLLM {names.version} has no argument {', '.join(unknown)}"
            )
        lacks = lacking(arguments, names.sampling.__struct_fields__)
        if config.model is not None:
            try:
                _load_processor(config)
            except NoVision as error:
                lacks[VISION] = str(error)
        return EngineSupport(names.version, FEATURES - lacks.keys(), lacks)

    @override
    async def start(self) -> EngineInfo:
        """Builds the engine on a thread (it loads, compiles and captures for a minute or more),
        loads the adapters, and decodes a token.

        Raises EngineFailed, with vLLM's message, if it cannot be built; ImportError if it is not
        installed.
        """
        arguments = engine_arguments(self._config)
        if publishes_events(arguments):
            self._reader = LocalKvReader()
        try:
            self._info = await in_daemon_thread("vllm-build", self._build, arguments)
            for adapter in self._adapters.values():
                await self._llm.add_lora(adapter)
            # Some code is compiled at the first request. For log probabilities this takes minutes
            # on a slow CPU.
            first = Sampling(max_tokens=1, logprobs=0)
            await decode_trial(self, EngineRequest("start", [0], first, []))
        except Exception as error:
            await self.stop(1.0)
            if isinstance(error, ImportError):
                raise
            raise load_failure(self._config.model, error) from error
        # After the first token, which may take longer than the watchdog waits.
        self._turns.watch(self._config.watchdog_s, self._check)
        return self._info

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        turn = self._turns.open(request.id, sink)
        try:
            outputs = self._submit(request)
        except Exception:
            turn.close()
            raise
        # vLLM returns an iterator and nothing else. Cancelling the task closes it, and that aborts
        # the request.
        turn.run(self._pump(turn, outputs, VllmProgress(request)))
        return turn

    @override
    def load(self) -> Load:
        return self._turns.load(self._info.slots, self._config.queue_limit, self._kv_used)

    @override
    def death(self) -> str | None:
        return self._turns.death

    @override
    def adapters(self) -> Sequence[str]:
        return list(self._adapters)

    @override
    async def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        if self._reader is not None and self._info.block_tokens is not None:
            async for event in self._reader.read(self._info.block_tokens):
                yield event

    @override
    async def stop(self, grace_s: float) -> None:
        """Stops as `Engine.stop`. Processes of vLLM that are left end with this one (`parent`)."""
        self._turns.stop()
        if self._reader is not None:
            self._reader.close()
        if self._images is not None:
            self._images.close()
        llm = self._llm
        self._llm = None
        if llm is not None:
            await run_for(grace_s, "vllm-shutdown", llm.shutdown, timeout=grace_s * STOP_SHARE)

    def _submit(self, request: EngineRequest) -> Any:
        """Returns an iterator over the request's outputs. vLLM checks some values here, others at
        the first step."""
        names = self._vllm
        arguments = sampling_arguments(request, self._facts.sampling)
        form = guided_arguments(request)
        try:
            if form is not None:
                arguments["structured_outputs"] = names.structured_outputs(**form)
            sampling = names.sampling(output_kind=names.delta, **arguments)
        except (names.client_error, ValueError, TypeError) as error:
            raise Invalid(_refusal(error)) from error
        ids = prompt_ids(request, self._info.max_model_len)
        if request.images:
            return self._generate_with_images(ids, request, sampling)
        prompt = names.tokens_input(ids, cache_salt=request.cache_salt)
        return self._generate(prompt, request, sampling)

    def _generate(self, prompt: Any, request: EngineRequest, sampling: Any) -> Any:
        return self._llm.generate(
            prompt,
            sampling,
            request.id,
            lora_request=self._adapters[request.adapter] if request.adapter else None,
            priority=-integer_priority(request),  # smaller ones are sooner
        )

    async def _generate_with_images(
        self, ids: list[int], request: EngineRequest, sampling: Any
    ) -> AsyncGenerator[Any, None]:
        """Yields the outputs of a request with images.

        vLLM has a cache of processed images in this process and another in its own, and sends an
        image once. They differ after a request was closed before it was sent. Then the next request
        with its image ends with an error, and a second attempt sends the image.
        """
        assert self._images is not None, "the engine has no vision"
        for last in (False, True):
            prompt = await self._images.render(ids, request)
            self._turns.stepped()
            async with aclosing(self._generate(prompt, request, sampling)) as outputs:
                output = await anext(outputs)
                if output.outputs[0].finish_reason == "error" and not last:
                    continue
                yield output
                async for output in outputs:
                    yield output
                return

    async def _pump(self, turn: EngineTurn, outputs: Any, progress: VllmProgress) -> None:
        """Passes the outputs to the turn."""
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    self._turns.stepped()
                    turn.put(progress.read(output))
                    if turn.ended and not output.finished:
                        return
            turn.fail(EngineFailed("vLLM ended the request without a reason"))
        except self._vllm.client_error as error:
            turn.fail(Invalid(_refusal(error)))
        except self._vllm.dead_error:
            self._turns.die(DEATH)
        except TurnwireError as error:
            turn.fail(error)
        except Exception as error:
            turn.fail(EngineFailed(f"vLLM: {error.__cause__ or error!r}"))

    def _check(self) -> str | None:
        """Returns why the engine is dead; None while vLLM reports no error."""
        return DEATH if self._llm.errored else None

    def _stepped(self, stats: Any) -> None:
        """Notes a step, also one of a long prefill, which has no outputs."""
        self._turns.stepped()
        if stats is not None:
            self._kv_used = min(1.0, float(stats.kv_cache_usage))

    def _build(self, arguments: dict[str, Any]) -> EngineInfo:
        """Builds the engine. Runs on a thread of its own."""
        set_environment(os.environ)
        self._facts = read_facts(self._config.model)
        names = _VllmNames()
        self._vllm = names
        self._adapters = {
            name: names.lora_request(name, number, path)
            for number, (name, path) in enumerate(adapter_paths(self._config).items(), 1)
        }
        events = None
        if self._reader is not None:
            events = names.kv_events_config(
                enable_kv_cache_events=True, publisher="zmq", endpoint=self._reader.endpoint
            )
        configs = {"kv_events_config": events, **_as_configs(arguments, names.engine_args)}
        self._llm = names.engine.from_engine_args(
            names.engine_args(**configs),
            stat_loggers=[_step_logger(names.stat_logger, self._stepped)],
        )

        config = self._llm.vllm_config
        cache = config.cache_config
        caches = bool(cache.enable_prefix_caching)
        lacks = lacking(arguments, names.sampling.__struct_fields__, caches=caches)
        try:
            self._images = ImageRenderer(self._llm, _load_processor(self._config))
        except Exception as error:
            lacks[VISION] = str(error)
        scheduler = config.scheduler_config
        block_tokens = cache.effective_attention_block_size or cache.block_size
        drafts = config.speculative_config
        return EngineInfo(
            name="vllm",
            version=names.version,
            max_model_len=config.model_config.max_model_len,
            slots=scheduler.max_num_seqs,
            block_tokens=block_tokens if "prefix_cache" not in lacks else None,
            kv_tokens=cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size,
            eos_ids=self._facts.eos_ids,
            features=FEATURES - lacks.keys(),
            vocab_size=config.model_config.get_vocab_size(),
            lacking=lacks,
            # It enters a prompt's blocks into its cache in the step that schedules them. With this
            # threshold, several prompts of one step each get a part of their common beginning.
            shares_queued=not scheduler.long_prefill_token_threshold,
            recomputed_blocks=int(drafts is not None and drafts.use_eagle_block_drop()),
        )


class _VllmNames:
    """The names of vLLM that are used. The construction imports vLLM, which takes ten seconds or
    more."""

    def __init__(self) -> None:
        load = importlib.import_module
        sampling = load("vllm.sampling_params")
        exceptions = load("vllm.v1.engine.exceptions")
        self.version = str(load("vllm").__version__)
        self.engine: Any = load("vllm.v1.engine.async_llm").AsyncLLM
        self.engine_args: Any = load("vllm.engine.arg_utils").AsyncEngineArgs
        self.kv_events_config: Any = load("vllm.config.kv_events").KVEventsConfig
        self.lora_request: Any = load("vllm.lora.request").LoRARequest
        self.tokens_input: Any = load("vllm.inputs").tokens_input
        self.stat_logger: Any = load("vllm.v1.metrics.loggers").StatLoggerBase
        self.sampling: Any = sampling.SamplingParams
        self.structured_outputs: Any = sampling.StructuredOutputsParams
        self.delta: Any = sampling.RequestOutputKind.DELTA
        self.client_error: type[Exception] = load("vllm.exceptions").VLLMClientError
        self.dead_error: type[Exception] = exceptions.EngineDeadError


def _step_logger(base: Any, on_step: Callable[[Any], None]) -> Any:
    """Makes a class for vLLM's `stat_loggers` that calls `on_step` with the scheduler's statistics,
    or None."""

    class StepLogger(base):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, *_args: Any, **_more: Any) -> None:
            on_step(scheduler_stats)

        def log_engine_initialized(self) -> None:
            pass

    return StepLogger


def _as_configs(arguments: Mapping[str, Any], engine_args: Any) -> dict[str, Any]:
    """Returns the arguments, with an object of vLLM in place of a JSON object that vLLM does not
    accept."""
    converted = dict(arguments)
    for field in dataclasses.fields(engine_args):
        if isinstance(converted.get(field.name), Mapping) and not isinstance(field.type, str):
            from pydantic import TypeAdapter  # vLLM's own dependency

            converted[field.name] = TypeAdapter(field.type).validate_python(converted[field.name])
    return converted


def _load_processor(config: WorkerConfig) -> ImageProcessor:
    return ImageProcessor.load(config.model, trust_remote_code=config.trust_remote_code)


def _refusal(error: Exception) -> str:
    return f"vLLM refused the request: {error.args[0] if error.args else error!r}"

"""A `tensorrt_llm` with the signatures of the real one: of 1.2 (`v12`) and of main in 2026 (`main26`).

`modules(variant)` gives the modules to put into `sys.modules`; `tensorrt_llm.LLM.last` is the engine that was built.
"""

import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from .runtime import EngineDeadError, RequestError, RequestOutput, Runtime

_COMMON_LLM = [
    "model",
    "dtype",
    "trust_remote_code",
    "tokenizer",
    "skip_tokenizer_init",
    "tensor_parallel_size",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "max_input_len",
    "enable_chunked_prefill",
    "scheduler_config",
    "kv_cache_config",
    "guided_decoding_backend",
    "enable_iter_perf_stats",
    "stream_interval",
    "num_postprocess_workers",
    "return_perf_metrics",
]
_COMMON_SCHEDULER = ["capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config"]


@dataclass(kw_only=True)
class SamplingParams12:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int | None = None
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guided_decoding: object = None
    embedding_bias: object = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    add_special_tokens: bool = True
    return_perf_metrics: bool = False

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 0:
            raise ValueError("require top_k >= 0")
        if self.max_tokens < 1:
            raise ValueError("require max_tokens >= 1")
        if self.end_id is not None and self.stop is not None:
            raise RuntimeError("stop is not processed by tokenizer")


@dataclass(kw_only=True)
class SamplingParams26(SamplingParams12):
    logprobs_mode: str = "raw"
    logprobs_simple_format: bool = False
    thinking_token_budget: int | None = None


@dataclass(kw_only=True)
class GuidedDecodingParams:
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        if sum(bool(value) for value in vars(self).values()) != 1:
            raise ValueError("only one guide can be used")


class _Base:
    last: ClassVar["_Base | None"] = None
    fields: ClassVar[frozenset[str]] = frozenset()
    silent_death = False
    end_id_in_ids = False

    def __init__(
        self,
        model: object,
        tokenizer: object = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        if unknown := sorted(set(kwargs) - self.fields):
            raise ValueError(f"LLM got invalid argument: {unknown[0]}")
        self.kwargs = kwargs
        self.args = types.SimpleNamespace(max_seq_len=kwargs.get("max_seq_len"))
        self.runtime = Runtime(
            kwargs.get("max_batch_size", 2048), silent_death=self.silent_death, end_id_in_ids=self.end_id_in_ids
        )
        self.shutdowns = 0
        type(self).last = self

    def _submit(
        self, inputs: list[int], sampling: Any, streaming: bool, cache_salt: str | None, priority: float
    ) -> RequestOutput:
        if self.shutdowns:
            raise RuntimeError("LLM is shutting down")
        assert streaming
        if not isinstance(inputs[0], int):
            raise TypeError("prompt_token_ids must be ints")
        if sampling.guided_decoding is not None and not self.kwargs.get("guided_decoding_backend"):
            raise ValueError("guided_decoding_backend is not set")
        if getattr(sampling, "used", False):
            raise AssertionError("SamplingParams were used before")
        sampling.used = True
        output = RequestOutput(self.runtime, list(inputs), sampling, cache_salt, priority)
        self.runtime.submit(output)
        if self.runtime.dead and not self.silent_death:
            output.deliver(EngineDeadError("the engine is dead"))
        return output

    def get_stats(self, timeout: float = 2) -> list[dict[str, Any]]:
        assert self.runtime.first_request, "no statistics before the first request"
        return [self.runtime.iterations.popleft() for _ in range(len(self.runtime.iterations))]

    def get_kv_cache_events(self, timeout: float = 2) -> list[dict[str, Any]]:
        assert self.runtime.first_request, "no events before the first request"
        if not self.kwargs.get("kv_cache_config", {}).get("event_buffer_max_size"):
            raise RuntimeError("event_buffer_max_size is 0")
        return [self.runtime.events.popleft() for _ in range(len(self.runtime.events))]

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.runtime.shutdown()


class LLM12(_Base):
    """1.2: no priority, no health check, a killed worker is silent, the end id is not among the ids."""

    fields = frozenset(_COMMON_LLM)
    silent_death = True

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: Any = None,
        lora_request: object = None,
        prompt_adapter_request: object = None,
        streaming: bool = False,
        kv_cache_retention_config: object = None,
        disaggregated_params: object = None,
        scheduling_params: object = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        return self._submit(inputs, sampling_params, streaming, cache_salt, 0.5)


class LLM26(_Base):
    """main of 2026: priorities, telemetry, a health check, a sticky error when the engine has died."""

    fields = frozenset([*_COMMON_LLM, "telemetry_config", "sampler_type"])
    end_id_in_ids = True

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: Any = None,
        lora_request: object = None,
        prompt_adapter_request: object = None,
        streaming: bool = False,
        kv_cache_retention_config: object = None,
        disaggregated_params: object = None,
        trace_headers: object = None,
        _postproc_params: object = None,
        scheduling_params: object = None,
        conversation_params: object = None,
        cache_salt: str | None = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        return self._submit(inputs, sampling_params, streaming, cache_salt, priority)

    def _check_health(self) -> bool:
        return not self.runtime.dead

    def get_kv_cache_capacity(self) -> dict[str, int]:
        return {"maxNumBlocks": 1024, "tokensPerBlock": 32, "maxNumTokens": 32768}


def _model(name: str, fields: Iterable[str]) -> type:
    return type(name, (), {"model_fields": dict.fromkeys(fields)})


def modules(variant: str) -> dict[str, types.ModuleType]:
    """`tensorrt_llm` and its submodules, by name."""
    llm: type[_Base]
    sampling: type[SamplingParams12]
    llm, sampling = (LLM12, SamplingParams12) if variant == "v12" else (LLM26, SamplingParams26)
    root: Any = types.ModuleType("tensorrt_llm")
    llmapi: Any = types.ModuleType("tensorrt_llm.llmapi")
    executor: Any = types.ModuleType("tensorrt_llm.executor")
    root.__version__ = "1.2.1" if variant == "v12" else "1.3.0rc25"
    root.LLM, root.SamplingParams = llm, sampling
    root.llmapi, root.executor = llmapi, executor
    llmapi.RequestError = RequestError
    llmapi.GuidedDecodingParams = GuidedDecodingParams
    llmapi.TorchLlmArgs = _model("TorchLlmArgs", llm.fields)
    extra = ["waiting_queue_policy"] if variant == "main26" else []
    llmapi.SchedulerConfig = _model("SchedulerConfig", [*_COMMON_SCHEDULER, *extra])
    if variant == "main26":
        executor.EngineDeadError = EngineDeadError
    return {module.__name__: module for module in (root, llmapi, executor)}

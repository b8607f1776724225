"""Probes which arguments the installed TensorRT-LLM takes, by its signatures: releases differ.

1.2 has no `priority`, `trace_headers` or `conversation_params` in `generate_async`, and refuses any unknown keyword;
which release got which is not documented.
"""

import inspect
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

_BASIC_LLM_FIELDS = frozenset(
    {
        "dtype",
        "enable_chunked_prefill",
        "enable_iter_perf_stats",
        "guided_decoding_backend",
        "kv_cache_config",
        "max_batch_size",
        "max_seq_len",
        "model",
        "trust_remote_code",
    }
)
"""Fields that 1.2 and later have alike, for releases whose argument class cannot be inspected."""


class Capabilities(Struct, frozen=True):
    """Names of the arguments that can be passed."""

    llm: frozenset[str]
    """To the constructor."""
    scheduler: frozenset[str]
    """In `scheduler_config`."""
    generate: frozenset[str]
    """To `generate_async`."""
    sampling: frozenset[str]
    """To `SamplingParams`."""


def probe(tensorrt_llm: Any, llmapi: Any) -> Capabilities:
    """Inspects the package `tensorrt_llm` and its `tensorrt_llm.llmapi`."""
    return Capabilities(
        llm=_fields(getattr(llmapi, "TorchLlmArgs", None)) or _BASIC_LLM_FIELDS,
        scheduler=_fields(getattr(llmapi, "SchedulerConfig", None)),
        generate=_parameters(tensorrt_llm.LLM.generate_async),
        sampling=_parameters(tensorrt_llm.SamplingParams),
    )


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - {"self"}


def _fields(model: Any) -> frozenset[str]:
    """Names of a pydantic model's fields."""
    fields: Collection[str] = getattr(model, "model_fields", None) or ()
    return frozenset(fields)

"""What the installed TensorRT-LLM takes: releases differ, so its signatures are asked instead of its version.

1.2 has no `priority`, `trace_headers` or `conversation_params` in `generate_async`, and refuses any keyword that it
does not know; which release got which is not documented.
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
"""Where the argument class cannot be asked: fields that 1.2 and later have alike."""


class Capabilities(Struct, frozen=True):
    """Names of what can be passed."""

    llm: frozenset[str]
    """To the constructor."""
    scheduler: frozenset[str]
    """In `scheduler_config`."""
    generate: frozenset[str]
    """To `generate_async`."""
    sampling: frozenset[str]
    """To `SamplingParams`."""


def probe(tensorrt_llm: Any, llmapi: Any) -> Capabilities:
    """Asks the package `tensorrt_llm` and its `tensorrt_llm.llmapi`."""
    return Capabilities(
        llm=_fields(getattr(llmapi, "TorchLlmArgs", None)) or _BASIC_LLM_FIELDS,
        scheduler=_fields(getattr(llmapi, "SchedulerConfig", None)),
        generate=_parameters(tensorrt_llm.LLM.generate_async),
        sampling=_parameters(tensorrt_llm.SamplingParams),
    )


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - {"self"}


def _fields(model: Any) -> frozenset[str]:
    """Fields of a pydantic model, by name."""
    fields: Collection[str] = getattr(model, "model_fields", None) or ()
    return frozenset(fields)

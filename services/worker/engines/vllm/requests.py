"""Makes arguments for vLLM, and deltas from its outputs. Pure: does not import vLLM.

Written for the API of 0.32 and 0.33 (`AsyncEngineArgs`, `SamplingParams`, `RequestOutput`); run
with 0.32 on a CPU.
"""

from collections.abc import Collection, Mapping
from typing import Any

from schemas.control import VISION
from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineRequest
from services.worker.engines.arguments import chosen_first, guided_arguments, limited_sampling
from services.worker.features import SAMPLING_FIELDS

_BLOCK_TOKENS = 16
"""vLLM's default on a GPU (`CacheConfig.DEFAULT_BLOCK_SIZE`)."""
_LARK_BACKEND = "guidance"
"""llguidance, which reads all of Lark; the other backends and the automatic choice do not."""
_ADAPTERS = "lora_modules"
"""An option of vLLM's server, not of its engine."""
_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.CANCELLED,
}


def engine_arguments(config: WorkerConfig) -> dict[str, Any]:
    """Makes the keyword arguments for `AsyncEngineArgs`; the worker's `engine_args` override ours.

    Prefix caching is on by default if the model allows it. The tokenizer stays (no
    `skip_tokenizer_init`): guided decoding needs its vocabulary. It costs nothing, because requests
    set `detokenize=False`. Raises Invalid as `adapter_paths`.
    """
    adapters = adapter_paths(config)
    overrides = dict(config.engine_args or {})
    overrides.pop(_ADAPTERS, None)
    arguments: dict[str, Any] = {
        "model": config.model,
        "trust_remote_code": config.trust_remote_code,
        "dtype": config.dtype,
        "max_num_seqs": config.slots,
        "scheduling_policy": "priority",
        "disable_log_stats": True,
    }
    if config.max_model_len is not None:
        arguments["max_model_len"] = config.max_model_len
    if config.kv_tokens is not None:
        size = int(overrides.get("block_size") or _BLOCK_TOKENS)
        arguments["block_size"] = size
        # vLLM keeps one block for itself.
        arguments["num_gpu_blocks_override"] = config.kv_tokens // size + 1
    if adapters:
        arguments["enable_lora"] = True
        # All of them in one step, and one more. On a CPU, 0.32.0 takes the adapter with index -1,
        # the last one, for a request without any (`lora/ops/torch_ops`): that place stays empty.
        arguments["max_loras"] = len(adapters) + 1
    return arguments | overrides


def adapter_paths(config: WorkerConfig) -> Mapping[str, str]:
    """Returns the directories of the LoRA adapters by name, which `engine_args.lora_modules` has.
    Raises Invalid if it is anything else."""
    modules = (config.engine_args or {}).get(_ADAPTERS, {})
    if not isinstance(modules, Mapping) or not all(
        isinstance(path, str) for path in modules.values()
    ):
        raise Invalid(
            f'engine_args.{_ADAPTERS} must have a path for each name: {{"sql": "/adapters/sql"}}',
            param="engine_args",
        )
    return modules


def publishes_events(arguments: Mapping[str, Any]) -> bool:
    """Returns whether an engine with these arguments can publish KV events on one local socket."""
    return (
        arguments.get("enable_prefix_caching") is not False
        and arguments.get("data_parallel_size", 1) == 1
        and arguments.get("kv_events_config") is None
    )


def lacking(
    arguments: Mapping[str, Any], sampling_fields: Collection[str], *, caches: bool = True
) -> dict[str, str]:
    """Returns the features that an engine with these arguments lacks, and why.

    `sampling_fields`: the fields of the installed `SamplingParams`; `caches`: whether the engine
    has a prefix cache, which some models cannot have.
    """
    lacks = {
        field.feature: "this release of vLLM has no such sampling parameter"
        for name, field in SAMPLING_FIELDS.items()
        if name not in sampling_fields
    }
    lacks["retention"] = "vLLM evicts the least recently used blocks"
    if arguments.get("speculative_config") is not None:
        lacks |= dict.fromkeys(("min_p", "logit_bias"), "vLLM refuses it with speculative decoding")
    mode = arguments.get("logprobs_mode", "raw_logprobs")
    if mode != "raw_logprobs":
        lacks |= dict.fromkeys(("logprobs", "top_logprobs"), f"engine_args.logprobs_mode is {mode}")
    if arguments.get("skip_tokenizer_init"):
        lacks |= dict.fromkeys(
            ("guided", "grammar", VISION), "engine_args.skip_tokenizer_init is set"
        )
    elif guided_backend(arguments) != _LARK_BACKEND:
        lacks["grammar"] = (
            f'needs engine_args {{"structured_outputs_config": {{"backend": "{_LARK_BACKEND}"}}}}'
        )
    policy = arguments["scheduling_policy"]
    if policy != "priority":
        lacks["priority"] = f"engine_args.scheduling_policy is {policy}"
    if not publishes_events(arguments):
        lacks["kv_events"] = "engine_args set kv_events_config or data_parallel_size"
    if not caches or arguments.get("enable_prefix_caching") is False:
        lacks |= dict.fromkeys(
            ("prefix_cache", "kv_events"), "prefix caching is off, or impossible for this model"
        )
    return lacks


def guided_backend(arguments: Mapping[str, Any]) -> str:
    """Returns vLLM's name of the library for structured output, which an engine uses for all
    requests."""
    config = arguments.get("structured_outputs_config")
    if isinstance(config, Mapping):
        return str(config.get("backend") or "auto")
    return str(getattr(config, "backend", None) or "auto")


def sampling_arguments(request: EngineRequest, defaults: Sampling) -> dict[str, Any]:
    """Makes keyword arguments for `SamplingParams`, except those with classes of vLLM. `defaults`:
    the model's."""
    arguments = limited_sampling(request, defaults)
    if not request.sampling.logit_bias:
        del arguments["logit_bias"]
    return arguments | {
        "stop_token_ids": list(request.stop_ids),
        # Only the stop ids end a turn, except that a grammar ends with the tokenizer's end token.
        "ignore_eos": guided_arguments(request) is None,
        "detokenize": False,
    }


class VllmProgress:
    """Turns the outputs of one request, which hold only new tokens (`RequestOutputKind.DELTA`),
    into deltas."""

    def __init__(self, request: EngineRequest) -> None:
        self._logprobs = request.sampling.logprobs
        self._prefill_only = request.sampling.max_tokens == 0
        self._started = False

    def read(self, output: Any) -> EngineDelta:
        """Returns the new tokens of `output`. Raises EngineFailed for a finish reason that the
        contract does not have."""
        (out,) = output.outputs
        ids = list(out.token_ids)
        delta = EngineDelta(ids)
        if out.finish_reason is not None:
            if out.finish_reason not in _FINISH:
                raise EngineFailed(f"vLLM ended the request: {out.finish_reason}")
            delta.finish = _FINISH[out.finish_reason]
        if not self._started:
            self._started = True
            delta.cached = int(output.num_cached_tokens or 0)
            delta.waited_s = _waited_s(getattr(output, "metrics", None))

        is_stop = delta.finish is FinishReason.STOP
        if self._prefill_only:
            delta.ids = []
            if is_stop:
                delta.finish = FinishReason.LENGTH
            return delta
        if self._logprobs is not None and ids:
            delta.logprobs = self._chosen(ids, out.logprobs)
        if is_stop:
            delta.stop_id = ids.pop()
            if delta.logprobs:
                delta.stop_logprobs = delta.logprobs.pop()
        return delta

    def _chosen(self, ids: list[int], rows: Any) -> list[list[tuple[int, float]]]:
        """Returns each id's (token, log probability) pairs, the chosen one first."""
        logprobs = []
        for token, row in zip(ids, rows, strict=True):
            values = {other: float(entry.logprob) for other, entry in row.items()}
            logprobs.append(chosen_first(token, values, self._logprobs))
        return logprobs


def _waited_s(stats: Any) -> float | None:
    """Reads a request's `RequestStateStats`, which an engine with `disable_log_stats` does not
    make."""
    queued = getattr(stats, "queued_ts", 0.0)
    scheduled = getattr(stats, "scheduled_ts", 0.0)
    if not queued or not scheduled:
        return None
    return max(scheduled - queued, 0.0)

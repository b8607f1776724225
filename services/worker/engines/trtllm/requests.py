"""Makes arguments for TensorRT-LLM, and deltas from its outputs. Pure: does not import
TensorRT-LLM."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig
from services.tokenization.model_files import with_defaults
from services.worker.engine import SAMPLING_FIELDS, Delta, EngineRequest
from services.worker.engines.support import chosen_first
from services.worker.engines.trtllm.releases import Release

BLOCK_TOKENS = 32
"""TensorRT-LLM's default for `tokens_per_block`."""
EVENT_BUFFER = 65_536
_LARK_BACKEND = "llguidance"
"""The guided decoding backend that reads Lark."""
_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "cancelled": FinishReason.CANCELLED,
}
RETAINED_PRIORITY = 60
"""Priority of the blocks of a retained prompt: 0 to 100, by default 35; lower ones are evicted
first."""
_DRAFTERS = ("NGram", "User_Provided")
"""Kinds of speculative decoding that draft outside the model's graph, so that the ordinary sampler
chooses."""
_NAMES = {"logit_bias": "embedding_bias"}
"""Field of `Sampling` → argument of `SamplingParams`, if their names differ."""


def llm_arguments(config: WorkerConfig, release: Release) -> dict[str, Any]:
    """Makes the keyword arguments for `LLM`; the worker's `engine_args` override ours, also inside
    nested configs.

    The tokenizer stays (no `skip_tokenizer_init`): guided decoding needs its vocabulary. It costs
    nothing, because requests set `detokenize=False`.
    """
    own: dict[str, Any] = {
        "model": config.model,
        "trust_remote_code": config.trust_remote_code,
        "max_batch_size": config.slots,
        # Without chunked prefill a prompt longer than max_num_tokens (8192) is refused.
        "enable_chunked_prefill": True,
        "enable_iter_perf_stats": True,
        "guided_decoding_backend": "xgrammar",
        "kv_cache_config": {"enable_block_reuse": True, "event_buffer_max_size": EVENT_BUFFER},
        # By default LLM() reports its use to NVIDIA.
        "telemetry_config": {"disabled": True},
        "scheduler_config": _scheduler(config, release),
    }
    if config.max_model_len is not None:
        own["max_seq_len"] = config.max_model_len
    if config.dtype != "auto":
        own["dtype"] = config.dtype
    if config.kv_tokens is not None:
        own["kv_cache_config"]["max_tokens"] = config.kv_tokens
    accepted = {name: value for name, value in own.items() if name in release.llm and value != {}}
    return _merged({"model": config.model} | accepted, config.engine_args or {})


def _scheduler(config: WorkerConfig, release: Release) -> dict[str, Any]:
    """Makes the scheduler's policies.

    By default (GUARANTEED_NO_EVICT) a request starts when the cache has room for prompt and all
    `max_tokens`. Agents request 32,000 to 128,000 and write some hundreds, so that a few turns
    would fill the cache, and the others wait. MAX_UTILIZATION starts a request when its prompt
    fits. When the cache is full, it pauses the newest ones, which are computed again later. With
    pipeline parallelism paused requests keep their blocks (#18115), and a KV connector refuses the
    policy.
    """
    policies: dict[str, Any] = {}
    own = config.engine_args or {}
    if "priority" in release.waiting_queue_policy:
        policies["waiting_queue_policy"] = "priority"
    if (
        release.frees_paused
        and own.get("pipeline_parallel_size", 1) == 1
        and not own.get("kv_connector_config")
    ):
        policies["capacity_scheduler_policy"] = "MAX_UTILIZATION"
    return policies


def unsampled(arguments: Mapping[str, Any]) -> frozenset[str]:
    """Returns the fields of `Sampling` that have no effect in an engine built with `arguments`.

    Speculative decoding samples in the model's graph, by temperature, top_k and top_p only, and by
    penalties if they are enabled (#17701). Up to 1.3.0rc25 the library ignores the others; newer
    releases refuse penalties and min_p.
    """
    config = arguments.get("speculative_config")
    if not isinstance(config, Mapping) or config.get("decoding_type") in _DRAFTERS:
        return frozenset()
    applied = {"sampling", "logprobs"}
    if config.get("enable_penalty") and not (
        config.get("eagle_choices") or config.get("use_dynamic_tree")
    ):
        applied.add("penalties")
    return frozenset(
        name for name, field in SAMPLING_FIELDS.items() if field.feature not in applied
    )


def lacking(
    arguments: Mapping[str, Any], release: Release, vocab_size: int | None = None
) -> dict[str, str]:
    """Returns the features that an engine built with `arguments` lacks, and why. `vocab_size`: None
    if unknown."""
    name = f"TensorRT-LLM {release.version}"
    cache = arguments.get("kv_cache_config") or {}
    scheduler = arguments.get("scheduler_config") or {}
    lacks = {
        "vision": "TensorRT-LLM replaces placeholders itself, so that the prompt is not the one that was counted"
    }
    without_effect = unsampled(arguments)
    for field, required in SAMPLING_FIELDS.items():
        own = _NAMES.get(field, field)
        if own not in release.sampling:
            lacks[required.feature] = f"{name} has no {own}"
        elif own in release.ignored:
            lacks[required.feature] = f"{name} accepts and ignores {own}"
        elif field in without_effect:
            lacks[required.feature] = f"speculative_config leaves {own} without effect"
    if not vocab_size:
        lacks["logit_bias"] = "the size of the vocabulary is not known"
    if not arguments.get("guided_decoding_backend"):
        lacks |= dict.fromkeys(("guided", "grammar"), "guided_decoding_backend is not set")
    elif arguments.get("skip_tokenizer_init"):
        lacks |= dict.fromkeys(
            ("guided", "grammar"), "skip_tokenizer_init leaves it without a vocabulary"
        )
    elif arguments["guided_decoding_backend"] != _LARK_BACKEND:
        lacks["grammar"] = f'needs engine_args {{"guided_decoding_backend": "{_LARK_BACKEND}"}}'
    if not cache.get("enable_block_reuse", True):
        lacks["prefix_cache"] = lacks["kv_events"] = "enable_block_reuse is off"
    elif not cache.get("event_buffer_max_size"):
        lacks["kv_events"] = "event_buffer_max_size is 0"
    elif cache.get("kv_events_config"):
        lacks["kv_events"] = "with kv_events_config they are published elsewhere"
    if "cache_salt" not in release.generate:
        lacks["salt"] = f"{name} has no cache_salt"
    if "kv_cache_retention_config" not in release.generate:
        lacks["retention"] = f"{name} has no kv_cache_retention_config"
    elif "prefix_cache" in lacks:
        lacks["retention"] = lacks["prefix_cache"]
    if "priority" not in release.generate or "priority" not in release.waiting_queue_policy:
        lacks["priority"] = f"{name} has no scheduling by priority"
    elif scheduler.get("waiting_queue_policy") != "priority":
        lacks["priority"] = "waiting_queue_policy is not priority"
    return lacks


def sampling_arguments(
    request: EngineRequest, own: Sampling, eos_ids: Sequence[int], release: Release
) -> dict[str, Any]:
    """Makes keyword arguments for a `SamplingParams` of this request alone: `generate_async`
    changes its argument.

    `own`: the model's defaults. Fields of `Sampling` keep their names. The caller adds `logit_bias`
    and guided decoding, which need classes of the library.

    Raises Invalid for `min_tokens` with several stop ids.
    """
    sampling = with_defaults(request.sampling, own)
    end = end_token(request, eos_ids)
    # Without stop ids only the limit ends the turn. SamplingParams still needs an end id, or it
    # uses the tokenizer's.
    end_id = end if end is not None else next(iter(eos_ids), -1)
    others = [token for token in request.stop_ids if token != end]
    if others and sampling.min_tokens:
        raise Invalid(
            "min_tokens: TensorRT-LLM holds back one end token, and this request has several",
            param="min_tokens",
        )
    arguments = {
        name: getattr(sampling, name) for name in SAMPLING_FIELDS if name not in _NAMES
    } | {
        "end_id": end_id,
        "pad_id": end_id,
        "stop_token_ids": others or None,
        "ignore_eos": end is None,
        # 0 is refused; the token is dropped.
        "max_tokens": max(1, sampling.max_tokens or 0),
        "min_tokens": sampling.min_tokens or None,
        "detokenize": False,
        # Else the last step removes the stop token from the ids.
        "include_stop_str_in_output": True,
        "top_k": max(0, sampling.top_k)
        if sampling.top_k is not None
        else None,  # -1 is refused, 0 is off
        # 0 would switch log probabilities off.
        "logprobs": max(1, sampling.logprobs) if sampling.logprobs is not None else None,
    }
    accepted = release.sampling - set(
        release.ignored
    )  # ignored ones are refused before, except the model's defaults
    return {
        name: value for name, value in arguments.items() if value is not None and name in accepted
    }


def end_token(request: EngineRequest, eos_ids: Sequence[int]) -> int | None:
    """Returns the stop id for TensorRT-LLM's one end id, an end token of the model if there is one;
    the others become stop words. None: the request has no stop ids."""
    return next(
        (token for token in eos_ids if token in request.stop_ids),
        next(iter(request.stop_ids), None),
    )


def bias_row(logit_bias: Mapping[int, float], vocab_size: int) -> list[float]:
    """Makes the row over the whole vocabulary that is added to the scores (`embedding_bias`)."""
    row = [0.0] * vocab_size
    for token, bias in logit_bias.items():
        row[token] = bias
    return row


def generate_arguments(request: EngineRequest, release: Release) -> dict[str, Any]:
    """Makes the keyword arguments for `generate_async`, except the prompt and its sampling."""
    arguments: dict[str, Any] = {"streaming": True}
    if request.cache_salt is not None and "cache_salt" in release.generate:
        arguments["cache_salt"] = request.cache_salt
    if request.trace and "trace_headers" in release.generate:
        arguments["trace_headers"] = dict(request.trace)
    if request.priority and "priority" in release.generate:
        # Maps all numbers to 0 to 1, in order; 0 becomes the default of 0.5.
        arguments["priority"] = 0.5 + request.priority / (2.0 * (1.0 + abs(request.priority)))
    return arguments


class Progress:
    """Turns one request's output, which the engine changes in place, into deltas."""

    def __init__(self, request: EngineRequest, eos_ids: Sequence[int]) -> None:
        self._prompt = len(request.token_ids)
        self._stops = frozenset(request.stop_ids)
        self._end_id = end_token(request, eos_ids)
        self._logprobs = request.sampling.logprobs
        self._max_tokens = request.sampling.max_tokens or 0
        self._prefill_only = self._max_tokens == 0
        self._seen = 0
        self._started = False

    def take(self, output: Any) -> Delta:
        """Returns the new tokens of `output`. Raises EngineFailed for a finish reason that the
        contract does not have.

        `token_ids` holds all tokens so far. At the end, stop words are cut off, so that it may be
        shorter than before. Whether it contains the end id depends on the backend. A stop token in
        the last place is held back until the engine reports whether it was the end.
        """
        if not output.outputs:
            raise EngineFailed("TensorRT-LLM sent a response without an output")
        out = output.outputs[0]
        ids: list[int] = list(out.token_ids[self._seen :])
        stop_id: int | None = None
        if ids and ids[-1] in self._stops:
            stop_id = ids.pop()
        delta = Delta([] if self._prefill_only else ids)
        if not self._started:
            self._started = True
            delta.cached = min(self._prompt, int(getattr(output, "cached_tokens", 0) or 0))
        if out.finish_reason is not None:
            finish = _FINISH.get(out.finish_reason)
            if finish is None:
                raise EngineFailed(f"TensorRT-LLM ended the request: {out.finish_reason}")
            if finish is not FinishReason.CANCELLED and self._prefill_only:
                finish = FinishReason.LENGTH
            elif finish is FinishReason.LENGTH and stop_id is not None:
                finish = FinishReason.STOP  # the limit and the end in one token
            delta.finish = finish
            if finish is FinishReason.STOP:
                named = out.stop_reason if isinstance(out.stop_reason, int) else self._end_id
                delta.stop_id = named if stop_id is None else stop_id
        if self._logprobs is not None:
            rows = self._chosen(out.logprobs or [], ids if stop_id is None else [*ids, stop_id])
            delta.logprobs = rows[: len(delta.ids)]
            if delta.stop_id is not None and len(rows) > len(ids):
                delta.stop_logprobs = rows[len(ids)]
        self._seen += len(ids)
        return delta

    @property
    def cut_at(self) -> int | None:
        """The window, if a turn with finish LENGTH has less than its `max_tokens`: the worker cuts
        it silently."""
        return self._prompt + self._seen if self._seen < self._max_tokens else None

    def _chosen(self, logprobs: Sequence[Any], ids: Sequence[int]) -> list[list[tuple[int, float]]]:
        """Returns each id's (token, log probability) pairs, the chosen one first. Entries are dicts
        by token or numbers."""
        rows: list[list[tuple[int, float]]] = []
        for token, entry in zip(ids, logprobs[self._seen :], strict=False):
            pairs: dict[int, Any] = dict(entry) if isinstance(entry, Mapping) else {token: entry}
            values = {key: float(getattr(value, "logprob", value)) for key, value in pairs.items()}
            rows.append(chosen_first(token, values, self._logprobs))
        return rows


def _merged(own: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(own)
    for name, value in overrides.items():
        mine = merged.get(name)
        merged[name] = (
            _merged(mine, value) if isinstance(mine, dict) and isinstance(value, Mapping) else value
        )
    return merged

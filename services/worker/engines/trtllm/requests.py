"""Makes arguments for TensorRT-LLM, and deltas from its outputs. Pure: does not import
TensorRT-LLM."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import with_defaults
from services.worker.engine import EngineDelta, EngineRequest
from services.worker.engines.arguments import chosen_first
from services.worker.engines.trtllm.releases import Release
from services.worker.features import SAMPLING_FIELDS, sampling_values

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
    defaults: dict[str, Any] = {
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
        defaults["max_seq_len"] = config.max_model_len
    if config.dtype != "auto":
        defaults["dtype"] = config.dtype
    if config.kv_tokens is not None:
        defaults["kv_cache_config"]["max_tokens"] = config.kv_tokens

    accepted = {"model": config.model}
    for name, value in defaults.items():
        if name in release.llm and value != {}:
            accepted[name] = value
    return _merged(accepted, config.engine_args or {})


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
    if "priority" in release.waiting_queue_policy:
        policies["waiting_queue_policy"] = "priority"
    engine_args = config.engine_args or {}
    is_one_pipeline = engine_args.get("pipeline_parallel_size", 1) == 1
    has_connector = bool(engine_args.get("kv_connector_config"))
    if release.frees_paused and is_one_pipeline and not has_connector:
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
    has_tree = config.get("eagle_choices") or config.get("use_dynamic_tree")
    if config.get("enable_penalty") and not has_tree:
        applied.add("penalties")
    return frozenset(
        name for name, field in SAMPLING_FIELDS.items() if field.feature not in applied
    )


def lacking(
    arguments: Mapping[str, Any], release: Release, vocab_size: int | None = None
) -> dict[str, str]:
    """Returns the features that an engine built with `arguments` lacks, and why. `vocab_size`: None
    if unknown."""
    lacks = {
        "vision": "TensorRT-LLM replaces placeholders itself, "
        "so that the prompt is not the one that was counted"
    }
    lacks |= _lacking_sampling(arguments, release)
    if not vocab_size:
        lacks["logit_bias"] = "the size of the vocabulary is not known"
    lacks |= _lacking_guides(arguments)
    lacks |= _lacking_cache(arguments, release)
    lacks |= _lacking_priority(arguments, release)
    return lacks


def _lacking_sampling(arguments: Mapping[str, Any], release: Release) -> dict[str, str]:
    lacks: dict[str, str] = {}
    without_effect = unsampled(arguments)
    for field, required in SAMPLING_FIELDS.items():
        argument = _NAMES.get(field, field)
        if argument not in release.sampling:
            lacks[required.feature] = f"{release.name} has no {argument}"
        elif argument in release.ignored:
            lacks[required.feature] = f"{release.name} accepts and ignores {argument}"
        elif field in without_effect:
            lacks[required.feature] = f"speculative_config leaves {argument} without effect"
    return lacks


def _lacking_guides(arguments: Mapping[str, Any]) -> dict[str, str]:
    backend = arguments.get("guided_decoding_backend")
    if not backend:
        return dict.fromkeys(("guided", "grammar"), "guided_decoding_backend is not set")
    if arguments.get("skip_tokenizer_init"):
        why = "skip_tokenizer_init leaves it without a vocabulary"
        return dict.fromkeys(("guided", "grammar"), why)
    if backend != _LARK_BACKEND:
        return {"grammar": f'needs engine_args {{"guided_decoding_backend": "{_LARK_BACKEND}"}}'}
    return {}


def _lacking_cache(arguments: Mapping[str, Any], release: Release) -> dict[str, str]:
    lacks: dict[str, str] = {}
    cache = arguments.get("kv_cache_config") or {}
    if not cache.get("enable_block_reuse", True):
        lacks |= dict.fromkeys(("prefix_cache", "kv_events"), "enable_block_reuse is off")
    elif not cache.get("event_buffer_max_size"):
        lacks["kv_events"] = "event_buffer_max_size is 0"
    elif cache.get("kv_events_config"):
        lacks["kv_events"] = "with kv_events_config they are published elsewhere"
    if "cache_salt" not in release.generate:
        lacks["salt"] = f"{release.name} has no cache_salt"
    if "kv_cache_retention_config" not in release.generate:
        lacks["retention"] = f"{release.name} has no kv_cache_retention_config"
    elif "prefix_cache" in lacks:
        lacks["retention"] = lacks["prefix_cache"]
    return lacks


def _lacking_priority(arguments: Mapping[str, Any], release: Release) -> dict[str, str]:
    if "priority" not in release.generate or "priority" not in release.waiting_queue_policy:
        return {"priority": f"{release.name} has no scheduling by priority"}
    scheduler = arguments.get("scheduler_config") or {}
    if scheduler.get("waiting_queue_policy") != "priority":
        return {"priority": "waiting_queue_policy is not priority"}
    return {}


def sampling_arguments(
    request: EngineRequest, defaults: Sampling, eos_ids: Sequence[int], release: Release
) -> dict[str, Any]:
    """Makes keyword arguments for a `SamplingParams` of this request alone: `generate_async`
    changes its argument.

    `defaults`: the model's. Fields of `Sampling` keep their names. The caller adds `logit_bias` and
    guided decoding, which need classes of the library.

    Raises Invalid for `min_tokens` with several stop ids.
    """
    sampling = with_defaults(request.sampling, defaults)
    end = end_token(request, eos_ids)
    others = [token for token in request.stop_ids if token != end]
    if others and sampling.min_tokens:
        raise Invalid(
            "min_tokens: TensorRT-LLM holds back one end token, and this request has several",
            param="min_tokens",
        )
    # Without stop ids only the limit ends the turn. SamplingParams still needs an end id, or it
    # uses the tokenizer's.
    end_id = next(iter(eos_ids), -1) if end is None else end
    arguments = sampling_values(sampling) | {
        "end_id": end_id,
        "pad_id": end_id,
        "ignore_eos": end is None,
        # 0 is refused; the token is dropped.
        "max_tokens": max(1, sampling.max_tokens or 0),
        "detokenize": False,
        # Else the last step removes the stop token from the ids.
        "include_stop_str_in_output": True,
    }
    if others:
        arguments["stop_token_ids"] = others
    if not sampling.min_tokens:
        arguments.pop("min_tokens", None)
    if "top_k" in arguments:
        arguments["top_k"] = max(0, arguments["top_k"])  # -1 is refused, 0 is off
    if "logprobs" in arguments:
        arguments["logprobs"] = max(1, arguments["logprobs"])  # 0 would switch them off

    # Ignored ones are refused before, except the model's defaults.
    accepted = release.sampling - set(release.ignored) - set(_NAMES)
    return {name: value for name, value in arguments.items() if name in accepted}


def end_token(request: EngineRequest, eos_ids: Sequence[int]) -> int | None:
    """Returns the stop id for TensorRT-LLM's one end id, an end token of the model if there is one;
    the others become stop words. None: the request has no stop ids."""
    for token in (*eos_ids, *request.stop_ids):
        if token in request.stop_ids:
            return token
    return None


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


class TrtllmProgress:
    """Turns one request's output, which the engine changes in place, into deltas."""

    def __init__(self, request: EngineRequest, eos_ids: Sequence[int]) -> None:
        self._prompt_tokens = len(request.token_ids)
        self._stops = frozenset(request.stop_ids)
        self._end_id = end_token(request, eos_ids)
        self._logprobs = request.sampling.logprobs
        self._max_tokens = request.sampling.max_tokens or 0
        self._prefill_only = self._max_tokens == 0
        self._seen = 0
        self._started = False

    def read(self, output: Any) -> EngineDelta:
        """Returns the new tokens of `output`. Raises EngineFailed for a finish reason that the
        contract does not have.

        `token_ids` holds all tokens so far. At the end, stop words are cut off, so that it may be
        shorter than before. Whether it contains the end id depends on the backend. A stop token in
        the last place is withheld until the engine reports whether it was the end.
        """
        if not output.outputs:
            raise EngineFailed("TensorRT-LLM sent a response without an output")
        out = output.outputs[0]
        new: list[int] = list(out.token_ids[self._seen :])
        ids = new
        withheld: int | None = None
        if new and new[-1] in self._stops:
            ids = new[:-1]
            withheld = new[-1]

        delta = EngineDelta([] if self._prefill_only else ids)
        if not self._started:
            self._started = True
            cached = int(getattr(output, "cached_tokens", 0) or 0)
            delta.cached = min(self._prompt_tokens, cached)
        if out.finish_reason is not None:
            delta.finish = self._finish(out.finish_reason, withheld)
        if delta.finish is FinishReason.STOP:
            delta.stop_id = self._stop_id(out, withheld)
        if self._logprobs is not None:
            rows = self._chosen(out.logprobs or [], new)
            delta.logprobs = rows[: len(delta.ids)]
            if delta.stop_id is not None and len(rows) > len(ids):
                delta.stop_logprobs = rows[len(ids)]
        self._seen += len(ids)
        return delta

    def _finish(self, reason: str, withheld: int | None) -> FinishReason:
        """Returns why the turn has ended. `withheld`: the stop token in the last place."""
        finish = _FINISH.get(reason)
        if finish is None:
            raise EngineFailed(f"TensorRT-LLM ended the request: {reason}")
        if finish is FinishReason.CANCELLED:
            return finish
        if self._prefill_only:
            return FinishReason.LENGTH
        if withheld is not None:
            return FinishReason.STOP  # also where the limit and the end are one token
        return finish

    def _stop_id(self, out: Any, withheld: int | None) -> int | None:
        """Returns the stop token, which the ids may lack."""
        if withheld is not None:
            return withheld
        return out.stop_reason if isinstance(out.stop_reason, int) else self._end_id

    @property
    def cut_at(self) -> int | None:
        """The window, if a turn with finish LENGTH has less than its `max_tokens`: the worker cuts
        it silently."""
        if self._seen >= self._max_tokens:
            return None
        return self._prompt_tokens + self._seen

    def _chosen(self, logprobs: Sequence[Any], ids: Sequence[int]) -> list[list[tuple[int, float]]]:
        """Returns each id's (token, log probability) pairs, the chosen one first. Entries are dicts
        by token or numbers."""
        rows: list[list[tuple[int, float]]] = []
        for token, entry in zip(ids, logprobs[self._seen :], strict=False):
            pairs = entry if isinstance(entry, Mapping) else {token: entry}
            values = {
                other: float(getattr(value, "logprob", value)) for other, value in pairs.items()
            }
            rows.append(chosen_first(token, values, self._logprobs))
        return rows


def _merged(defaults: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for name, value in overrides.items():
        default = merged.get(name)
        if isinstance(default, dict) and isinstance(value, Mapping):
            merged[name] = _merged(default, value)
        else:
            merged[name] = value
    return merged

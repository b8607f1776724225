"""Translates between the engine contract and transformers' continuous batching. Pure: no torch, no transformers.

Facts about the library were observed with 5.17 and 5.23; where the two differ, fields are probed.
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Any, Literal

import msgspec
from msgspec import Struct

from schemas.conversation import Sampling
from schemas.errors import Invalid
from schemas.events import FinishReason
from services.worker.engine import LOWEST_LOGPROB, Delta, EngineRequest

HOST_FEATURES = frozenset({"penalties", "min_tokens", "logit_bias", "logprobs", "top_logprobs"})
"""Those that are computed between two steps (`rows.py`)."""
ALL_FEATURES = HOST_FEATURES | {"sampling", "seed", "min_p", "guided", "grammar", "prefix_cache"}
"""Those of the engine, less what it lacks in a configuration."""
_GUIDED = ("guided", "grammar")
_RECURRENT = ("conv", "linear", "mamba", "recurrent")
PAGE_TOKENS = 32
"""The library's own 256 would share no prompt of less than 257 tokens."""
CPU_BATCH_TOKENS = 512
CPU_KV_TOKENS = 131_072
CPU_KV_SHARE = 1 / 8
"""Of the memory that is free. Left to itself the library takes 60 % of it, and 15 s to fill it with zeros."""
MAX_SEED = 2**31 - 1
COLDEST = 1e-4
"""Dividing by less overflows float32, and one row of NaN ends the library's thread. Sampling is greedy long before."""


class EngineArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """`engine_args` of this engine."""

    mode: Literal["sampling", "greedy"] = "sampling"
    """`greedy`: no sampling. Its log probabilities are the library's own, also on a GPU with CUDA graphs; those of
    `sampling` need steps without graphs, and come with alternatives."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights, for a directory that has none."""
    seed: int | None = None
    """For random weights, and for the engine's own random numbers."""
    threads: int | None = None
    """CPU threads; default: OMP_NUM_THREADS, else the cores of the machine but one, at most 8."""
    attn_implementation: str = "sdpa"
    batching: dict[str, Any] = {}
    """Fields of transformers' ContinuousBatchingConfig."""
    model_kwargs: dict[str, Any] = {}
    """For `from_pretrained`."""


def parse_args(engine_args: Mapping[str, Any] | None) -> EngineArgs:
    """`engine_args`, checked. Raises Invalid, naming the field."""
    try:
        return msgspec.convert(engine_args or {}, EngineArgs)
    except msgspec.ValidationError as error:
        raise Invalid(f"engine_args of the transformers engine: {error}", param="engine_args") from None


def batching_options(
    args: EngineArgs, *, slots: int, kv_tokens: int | None, on_cpu: bool, known: Collection[str]
) -> dict[str, Any]:
    """Arguments for ContinuousBatchingConfig. `known`: the fields of the installed one.

    Raises Invalid for a field in `batching` that it lacks, or that would break the engine.
    """
    page = "page_size" if "page_size" in known else "block_size"  # 5.17 has only the latter, 5.23 warns about it
    page_tokens = int(args.batching.get(page, PAGE_TOKENS))
    options: dict[str, Any] = {
        page: page_tokens,
        "max_requests_per_batch": slots,
        "per_request_processors": False,
        "return_logprobs": args.mode == "greedy",
    }
    if kv_tokens is not None:
        # One block more: a request that does not fit the cache at all ends the library's thread.
        options["num_blocks"] = ceil(kv_tokens / page_tokens) + 1
    if on_cpu:
        options["max_batch_tokens"] = CPU_BATCH_TOKENS
        if "auto_switch_to_flash" in known:
            options["auto_switch_to_flash"] = False  # it would request kernels from the hub
    elif args.mode == "sampling":
        options["max_memory_percent"] = 0.8  # what the library takes when it has logits processors of its own
    if args.seed is not None:
        options["seed"] = args.seed
    if unknown := sorted(set(args.batching) - set(known)):
        raise Invalid(f"engine_args.batching: transformers has no {', '.join(unknown)}", param="engine_args")
    if args.batching.get("max_queue_size"):
        raise Invalid("engine_args.batching.max_queue_size would block the event loop", param="engine_args")
    return options | args.batching


def has_graphs(batching: Mapping[str, Any]) -> bool:
    """Whether steps on a GPU run as CUDA graphs, or may, with these options."""
    return not (batching.get("use_cuda_graph") is False and batching.get("use_async_batching") is False)


def cpu_kv_tokens(bytes_per_token: int, free_bytes: int, window: int) -> int:
    """Default capacity of the KV cache on a CPU: one window if memory allows, and no more than is useful."""
    room = int(free_bytes * CPU_KV_SHARE) // max(1, bytes_per_token)
    return max(4 * PAGE_TOKENS, min(room, max(window, CPU_KV_TOKENS // 4), CPU_KV_TOKENS))


def row_arguments(sampling: Sampling, seed: int | None = None) -> dict[str, Any]:
    """A request's arguments for the sampler; a greedy one has only the choice itself.

    `seed`: for a request without one whose choice must be known at once, because it reports log probabilities.
    """
    temperature = sampling.temperature or 0.0
    if temperature < COLDEST or sampling.top_k == 1:
        return {"pick": -1}
    arguments: dict[str, Any] = {"temperature": float(temperature)}
    if sampling.top_k is not None and sampling.top_k > 0:
        arguments["top_k"] = sampling.top_k
    if sampling.top_p is not None and sampling.top_p < 1.0:
        arguments["top_p"] = float(sampling.top_p)
    if sampling.min_p:
        arguments["min_p"] = float(sampling.min_p)
    if (chosen := sampling.seed if sampling.seed is not None else seed) is not None:
        arguments["pick"] = chosen % MAX_SEED + 1
    return arguments


def lacking(args: EngineArgs, *, graphs: bool, guided: bool) -> dict[str, str]:
    """The features that the engine lacks, and why. `graphs`: steps run as CUDA graphs, or may; `guided`: llguidance
    is there, and can read the tokenizer."""
    found = dict.fromkeys(("kv_events", "priority", "salt"), "continuous batching of transformers has none")
    if args.mode == "greedy":
        found |= dict.fromkeys(("sampling", "seed", "min_p"), "engine_args.mode is greedy")
        found |= dict.fromkeys((*HOST_FEATURES - {"logprobs"}, *_GUIDED), "engine_args.mode is greedy")
    elif graphs:
        why = 'CUDA graphs; engine_args {"batching": {"use_cuda_graph": false, "use_async_batching": false}} has them'
        found |= dict.fromkeys((*HOST_FEATURES, *_GUIDED), why)
    elif not guided:
        why = "needs llguidance (in a clone, pip install -e '.[guided]') and a tokenizer that it can read"
        found |= dict.fromkeys(_GUIDED, why)
    return found


def recurrent_layers(config: Mapping[str, Any]) -> str | None:
    """The kind of layers that continuous batching refuses, by a model's config.json: those without a KV cache."""
    text = config.get("text_config") or config
    kinds = [*(text.get("layer_types") or ()), *(text.get("layers_block_type") or ())]
    if "M" in str(text.get("hybrid_override_pattern") or ""):
        kinds.append("mamba")
    return next((kind for kind in kinds if str(kind).startswith(_RECURRENT)), None)


class Progress:
    """Turns one request's outputs, each with all tokens so far, into deltas."""

    def __init__(self, request: EngineRequest) -> None:
        self._stops = frozenset(request.stop_ids)
        self._wants_logprobs = request.sampling.logprobs is not None
        self._limit = request.sampling.max_tokens or 0
        self.taken = 0
        """The number of tokens that were returned."""
        self.finished = False
        """The library has ended this request."""
        self.host_logprobs: Mapping[int, list[tuple[int, float]]] | None = None
        """By output index, with alternatives, in place of the library's own."""

    def take(self, generated: Sequence[int], logprobs: Sequence[float], cached: int | None) -> Delta:
        """The new tokens. The library reports no reason for an end: it is the stop token at the end, else the limit."""
        if self._limit == 0:
            return Delta(cached=cached, finish=FinishReason.LENGTH if self.finished else None)
        fresh = generated[self.taken :]
        ids = list(fresh)
        delta = Delta(ids, cached=cached)
        if self.finished:
            delta.finish = FinishReason.LENGTH
            if ids and ids[-1] in self._stops:
                delta.finish, delta.stop_id = FinishReason.STOP, ids.pop()
        if self._wants_logprobs:
            if (found := self.host_logprobs) is not None:
                rows = [found.get(self.taken + n, [(token, LOWEST_LOGPROB)]) for n, token in enumerate(fresh)]
            else:
                rows = [[pair] for pair in zip(fresh, logprobs[self.taken :], strict=False)]
            delta.logprobs = rows[: len(ids)]
            delta.stop_logprobs = next(iter(rows[len(ids) :]), None)
        self.taken += len(ids)
        return delta

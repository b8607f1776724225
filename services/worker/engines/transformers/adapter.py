"""Translates between the engine contract and transformers' continuous batching. Pure: no torch, no
transformers.

Facts about the library were observed with 5.17 and 5.23; where the two differ, fields are probed.
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Any, Literal

import msgspec
from msgspec import Struct

from schemas.control import VISION
from schemas.conversation import Sampling
from schemas.errors import Invalid
from schemas.events import FinishReason
from services.worker.engine import LOWEST_LOGPROB, EngineDelta, EngineRequest

HOST_FEATURES = frozenset(
    {
        "penalties",
        "min_tokens",
        "logit_bias",
        "logprobs",
        "top_logprobs",
    }
)
"""Features that are computed between two steps (`rows.py`)."""
ALL_FEATURES = HOST_FEATURES | {
    "sampling",
    "seed",
    "min_p",
    "guided",
    "grammar",
    "prefix_cache",
    VISION,
}
"""All features of the engine; a configuration may lack some (`lacking`)."""
_GUIDED = ("guided", "grammar")
GRAPHS = (
    'CUDA graphs; engine_args {"batching": {"use_cuda_graph": false, "use_async_batching": false}}'
    " has them"
)
_RECURRENT = ("conv", "linear", "mamba", "recurrent")
PAGE_TOKENS = 32
"""Tokens of a page. With the library's default of 256, prompts of fewer than 257 tokens share
nothing."""
CPU_BATCH_TOKENS = 512
MAX_SEED = 2**31 - 1
COLDEST = 1e-4
"""Least temperature that is not greedy. Less overflows float32, and one row of NaN ends the
library's thread."""


class EngineArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """The `engine_args` of this engine."""

    mode: Literal["sampling", "greedy"] = "sampling"
    """`greedy`: no sampling; the library computes log probabilities, also with CUDA graphs.
    `sampling`: log probabilities have alternatives, and need steps without graphs."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights, for a directory that has none."""
    seed: int | None = None
    """Seed of random weights and of the engine's random numbers."""
    threads: int | None = None
    """CPU threads; default: OMP_NUM_THREADS, else all cores but one, at most 8."""
    attn_implementation: str = "sdpa"
    batching: dict[str, Any] = {}
    """Fields of transformers' ContinuousBatchingConfig."""
    model_kwargs: dict[str, Any] = {}
    """Arguments for `from_pretrained`."""


def parse_args(engine_args: Mapping[str, Any] | None) -> EngineArgs:
    """Converts `engine_args`. Raises Invalid, which names the field."""
    try:
        return msgspec.convert(engine_args or {}, EngineArgs)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"engine_args of the transformers engine: {error}", param="engine_args"
        ) from None


def batching_options(
    args: EngineArgs, *, slots: int, kv_tokens: int | None, on_cpu: bool, fields: Collection[str]
) -> dict[str, Any]:
    """Returns the arguments for ContinuousBatchingConfig. `fields`: the fields of the installed
    class.

    Raises Invalid for an option in `batching` that it lacks, or that would break the engine.
    """
    # 5.17 has only the latter, 5.23 warns about it.
    page = "page_size" if "page_size" in fields else "block_size"
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
        if "auto_switch_to_flash" in fields:
            options["auto_switch_to_flash"] = False  # it would request kernels from the hub
    elif args.mode == "sampling":
        # The library's own choice when it has logits processors.
        options["max_memory_percent"] = 0.8
    if args.seed is not None:
        options["seed"] = args.seed
    unknown = sorted(set(args.batching) - set(fields))
    if unknown:
        raise Invalid(
            f"engine_args.batching: transformers has no {', '.join(unknown)}", param="engine_args"
        )
    if args.batching.get("max_queue_size"):
        raise Invalid(
            "engine_args.batching.max_queue_size would block the event loop", param="engine_args"
        )
    return options | args.batching


def has_graphs(batching: Mapping[str, Any]) -> bool:
    """Returns whether steps on a GPU may run as CUDA graphs with these options."""
    return not (
        batching.get("use_cuda_graph") is False and batching.get("use_async_batching") is False
    )


def row_arguments(sampling: Sampling, seed: int | None = None) -> dict[str, Any]:
    """Returns a request's arguments for the sampler; a greedy request has only `pick`.

    `seed`: used if the request has none; needed for log probabilities, since the sampler must then
    choose the token.
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
    if sampling.seed is not None:
        seed = sampling.seed
    if seed is not None:
        arguments["pick"] = seed % MAX_SEED + 1
    return arguments


def lacking(
    args: EngineArgs, *, graphs: bool, guided: bool, no_vision: str | None
) -> dict[str, str]:
    """Returns the features that the engine lacks, and why. `graphs`: steps may run as CUDA graphs;
    `guided`: llguidance is installed and can read the tokenizer; `no_vision`: why the model gets
    no images."""
    lacks = dict.fromkeys(
        ("kv_events", "priority", "salt"), "continuous batching of transformers has none"
    )
    if args.mode == "greedy":
        unsampled = ("sampling", "seed", "min_p", *HOST_FEATURES - {"logprobs"}, *_GUIDED)
        lacks |= dict.fromkeys(unsampled, "engine_args.mode is greedy")
    elif graphs:
        lacks |= dict.fromkeys((*HOST_FEATURES, *_GUIDED), GRAPHS)
    elif not guided:
        why = (
            "needs llguidance (in a clone, pip install -e '.[guided]') "
            "and a tokenizer that it can read"
        )
        lacks |= dict.fromkeys(_GUIDED, why)
    if no_vision is not None:
        lacks[VISION] = " ".join(no_vision.split())
    return lacks


def recurrent_layers(config: Mapping[str, Any]) -> str | None:
    """Returns the kind of layers without a KV cache, from a model's config.json: continuous
    batching refuses them."""
    text = config.get("text_config") or config
    kinds = [*(text.get("layer_types") or ()), *(text.get("layers_block_type") or ())]
    if "M" in str(text.get("hybrid_override_pattern") or ""):
        kinds.append("mamba")
    return next((kind for kind in kinds if str(kind).startswith(_RECURRENT)), None)


class TransformersProgress:
    """Turns one request's outputs, each with all tokens so far, into deltas."""

    def __init__(self, request: EngineRequest) -> None:
        self._stops = frozenset(request.stop_ids)
        self._wants_logprobs = request.sampling.logprobs is not None
        self._limit = request.sampling.max_tokens or 0
        self.taken = 0
        """The number of tokens returned so far."""
        self.finished = False
        """Whether the library has ended this request."""
        self.host_logprobs: Mapping[int, list[tuple[int, float]]] | None = None
        """Output index → log probabilities with alternatives, which replace the library's."""

    def read(
        self, generated: Sequence[int], logprobs: Sequence[float], cached: int | None
    ) -> EngineDelta:
        """Returns the new tokens. The library reports no reason for an end: a stop token at the
        end, else the limit."""
        delta = EngineDelta(cached=cached)
        if self.finished:
            delta.finish = FinishReason.LENGTH
        if self._limit == 0:
            return delta

        new = generated[self.taken :]
        ids = list(new)
        delta.ids = ids
        if self.finished and ids and ids[-1] in self._stops:
            delta.finish = FinishReason.STOP
            delta.stop_id = ids.pop()
        if self._wants_logprobs:
            rows = self._rows(new, logprobs)
            delta.logprobs = rows[: len(ids)]
            delta.stop_logprobs = next(iter(rows[len(ids) :]), None)
        self.taken += len(ids)
        return delta

    def _rows(self, new: Sequence[int], logprobs: Sequence[float]) -> list[list[tuple[int, float]]]:
        """Returns the log probabilities of new tokens."""
        host = self.host_logprobs
        if host is None:
            return [[pair] for pair in zip(new, logprobs[self.taken :], strict=False)]
        return [
            host.get(index, [(token, LOWEST_LOGPROB)])
            for index, token in enumerate(new, self.taken)
        ]

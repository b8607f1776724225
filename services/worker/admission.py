"""What a worker takes: the last check before an engine, pure and quick.

Engines refuse bad requests late or not at all: transformers' continuous batching dies of a prompt that can never fit,
of an empty one and of an id outside the vocabulary; TensorRT-LLM asserts on ids that are no Python ints.
"""

import re
import sys
from array import array
from collections.abc import Sequence
from math import isfinite

from schemas.conversation import Sampling
from schemas.errors import ContextOverflow, Invalid
from services.worker.engine import EngineInfo, EngineRequest

_BYTES = bytes(range(256))
_FEW = 8
"""One in so many ids is looked at singly; where there are more, all are."""


def check(request: EngineRequest, info: EngineInfo) -> None:
    """Returns if the engine can decode the request.

    Raises:
        ContextOverflow: prompt and `max_tokens` do not fit the context window or the KV cache. The wording is that of
            the Messages API, by which agent clients know that they must compact their history.
        Invalid: anything else; `param` names the field.
    """
    if not request.token_ids:
        raise Invalid("the prompt is empty", param="prompt")
    _check_ids("prompt", request.token_ids, info.vocab_size)
    max_tokens = request.sampling.max_tokens
    if max_tokens is None or max_tokens < 0:
        raise Invalid(f"max_tokens must be 0 or more, not {max_tokens}", param="max_tokens")
    _check_room(len(request.token_ids), max_tokens, info)
    _check_values(request.sampling)
    _check_ids("logit_bias", list(request.sampling.logit_bias), info.vocab_size)
    _check_features(request, info)


def _check_ids(name: str, token_ids: Sequence[int], vocab_size: int | None) -> None:
    try:
        ids = token_ids if isinstance(token_ids, array) and token_ids.typecode == "I" else array("I", token_ids)
    except (TypeError, OverflowError) as error:
        raise Invalid(f"the {name} is not a list of token ids: {error}", param=name) from None
    if vocab_size is not None and (largest := _largest(ids, vocab_size)) >= vocab_size:
        raise Invalid(f"token id {largest} is outside the vocabulary of {vocab_size}", param=name)


def _largest(ids: "array[int]", vocab_size: int) -> int:
    """The largest id where one is `vocab_size` or more, else any that is not."""
    place = max(vocab_size.bit_length() - 1, 0) // 8
    packed, high = ids.tobytes(), vocab_size >> 8 * place
    zeros = bytes(len(ids))
    if sys.byteorder == "little" and all(packed[above::4] == zeros for above in range(place + 1, 4)):
        # Most ids are told by one byte, without an object for each: 0.1 ms for 50,000 instead of 0.9.
        leading = packed[place::4]
        suspects = leading.translate(None, _BYTES[:high])
        if not suspects:
            return 0
        if len(suspects) * _FEW < len(ids):
            wanted = re.compile(b"[%b-\xff]" % re.escape(_BYTES[high : high + 1]))
            return max(ids[found.start()] for found in wanted.finditer(leading))
    return max(ids, default=0)


def _check_room(prompt: int, max_tokens: int, info: EngineInfo) -> None:
    room = info.max_model_len if info.kv_tokens is None else min(info.max_model_len, info.kv_tokens)
    if prompt > room:
        raise ContextOverflow(f"prompt is too long: {prompt} tokens > {room} maximum", param="prompt")
    if prompt + max_tokens > room:
        raise ContextOverflow(
            f"input length and `max_tokens` exceed context limit: {prompt} + {max_tokens} > {room}, "
            "decrease input length or `max_tokens` and try again",
            param="max_tokens",
        )


def _check_values(sampling: Sampling) -> None:
    """Ranges outside of which engines fail in their own ways, some by dying."""
    _within("temperature", sampling.temperature, 0.0, 100.0)
    _within("top_p", sampling.top_p, 0.0, 1.0)
    _within("min_p", sampling.min_p, 0.0, 1.0)
    _within("top_k", sampling.top_k, -1, 2**31 - 1)
    _within("presence_penalty", sampling.presence_penalty, -100.0, 100.0)
    _within("frequency_penalty", sampling.frequency_penalty, -100.0, 100.0)
    _within("repetition_penalty", sampling.repetition_penalty, 1e-3, 100.0)
    _within("logprobs", sampling.logprobs, 0, 1000)
    _within("seed", sampling.seed, -(2**63), 2**64 - 1)
    _within("min_tokens", sampling.min_tokens, 0, 2**31 - 1)
    for bias in sampling.logit_bias.values():
        _within("logit_bias", bias, -100.0, 100.0)


def _within(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (isfinite(value) and low <= value <= high):
        raise Invalid(f"{name} must be between {low} and {high}, not {value}", param=name)


def _check_features(request: EngineRequest, info: EngineInfo) -> None:
    for name, feature in _asked(request):
        if feature not in info.features:
            raise Invalid(f"{name} is not supported by the {info.name} engine of this model", param=name)
    if request.cache_salt is not None and info.block_tokens is not None and "salt" not in info.features:
        # An engine without a shared cache keeps salted turns apart by itself.
        raise Invalid(f"cache_salt is not supported by the {info.name} engine of this model", param="cache_salt")


def _asked(request: EngineRequest) -> list[tuple[str, str]]:
    """(field, feature) for everything that is not at its neutral value. `priority` is a hint and never refused."""
    sampling = request.sampling
    fields = [
        ("temperature", "sampling", bool(sampling.temperature)),
        ("top_p", "sampling", sampling.top_p not in {None, 1.0}),
        ("top_k", "sampling", sampling.top_k not in {None, 0, -1, 1}),
        ("min_p", "min_p", bool(sampling.min_p)),
        ("seed", "seed", sampling.seed is not None),
        ("presence_penalty", "penalties", bool(sampling.presence_penalty)),
        ("frequency_penalty", "penalties", bool(sampling.frequency_penalty)),
        ("repetition_penalty", "penalties", sampling.repetition_penalty not in {None, 1.0}),
        ("min_tokens", "min_tokens", bool(sampling.min_tokens)),
        ("logit_bias", "logit_bias", bool(sampling.logit_bias)),
        ("logprobs", "logprobs", sampling.logprobs is not None),
        ("top_logprobs", "top_logprobs", bool(sampling.logprobs)),
        ("format", "guided", request.guided is not None),
    ]
    return [(name, feature) for name, feature, asked in fields if asked]

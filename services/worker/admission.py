"""Checks a request before it reaches the engine. Pure and quick.

Engines refuse bad requests late or not at all: transformers' continuous batching dies of a prompt
that can never fit, of an empty one and of an id outside the vocabulary; TensorRT-LLM asserts that
ids are Python ints.
"""

import re
import sys
from array import array
from collections.abc import Sequence
from math import isfinite

from schemas.control import VISION
from schemas.conversation import Sampling
from schemas.errors import ContextOverflow, Invalid
from schemas.frames import PromptImage
from services.worker.engine import SAMPLING_FIELDS, EngineInfo, EngineRequest, required_features

_BYTES = bytes(range(256))
_FEW = 8
"""If fewer than one id in this number is suspect, only suspects are compared."""


def check(request: EngineRequest, info: EngineInfo) -> None:
    """Returns if the engine can decode the request.

    Raises:
        ContextOverflow: prompt and `max_tokens` do not fit the context window or the KV cache. The
            text is that of the Messages API, because agent clients recognize it and compact their
            history.
        Invalid: anything else; `param` names the field.
    """
    if not request.token_ids:
        raise Invalid("the prompt is empty", param="prompt")
    _check_ids("prompt", request.token_ids, info.vocab_size)
    max_tokens = request.sampling.max_tokens
    if max_tokens is None or max_tokens < 0:
        raise Invalid(f"max_tokens must be 0 or more, not {max_tokens}", param="max_tokens")
    room = info.max_model_len if info.kv_tokens is None else min(info.max_model_len, info.kv_tokens)
    check_room(len(request.token_ids), max_tokens, room)
    check_images(request.images, len(request.token_ids) - request.resumed, info)
    _check_values(request.sampling)
    _check_ids("logit_bias", list(request.sampling.logit_bias), info.vocab_size)
    _check_features(request, info)


def _check_ids(name: str, token_ids: Sequence[int], vocab_size: int | None) -> None:
    try:
        ids = (
            token_ids
            if isinstance(token_ids, array) and token_ids.typecode == "I"
            else array("I", token_ids)
        )
    except (TypeError, OverflowError) as error:
        raise Invalid(f"the {name} is not a list of token ids: {error}", param=name) from None
    if vocab_size is not None and (largest := _largest(ids, vocab_size)) >= vocab_size:
        raise Invalid(f"token id {largest} is outside the vocabulary of {vocab_size}", param=name)


def _largest(ids: "array[int]", vocab_size: int) -> int:
    """Returns the largest id if it is `vocab_size` or more, else any smaller id."""
    place = max(vocab_size.bit_length() - 1, 0) // 8
    packed, high = ids.tobytes(), vocab_size >> 8 * place
    zeros = bytes(len(ids))
    if sys.byteorder == "little" and all(
        packed[above::4] == zeros for above in range(place + 1, 4)
    ):
        # For most ids one byte decides, without an object for each: 0.1 ms for 50,000 ids instead
        # of 0.9 ms.
        leading = packed[place::4]
        suspects = leading.translate(None, _BYTES[:high])
        if not suspects:
            return 0
        if len(suspects) * _FEW < len(ids):
            suspect = re.compile(b"[%b-\xff]" % re.escape(_BYTES[high : high + 1]))
            return max(ids[match.start()] for match in suspect.finditer(leading))
    return max(ids, default=0)


def check_room(prompt: int, max_tokens: int, room: int) -> None:
    """Raises ContextOverflow if `prompt` tokens and `max_tokens` do not fit into `room`."""
    if prompt > room:
        raise ContextOverflow(
            f"prompt is too long: {prompt} tokens > {room} maximum", param="prompt"
        )
    if prompt + max_tokens > room:
        raise ContextOverflow(
            f"input length and `max_tokens` exceed context limit: {prompt} + {max_tokens} > {room}, "
            "decrease input length or `max_tokens` and try again",
            param="max_tokens",
        )


def check_images(images: Sequence[PromptImage], prompt: int, info: EngineInfo) -> None:
    """Raises Invalid if the engine sees no images, or if they are not in order and apart within a
    prompt of `prompt` tokens."""
    if images:
        _require("image", VISION, info, param="messages")
    end = 0
    for image in images:
        if not end <= image.at < image.at + image.tokens <= prompt:
            place = f"{image.tokens} tokens at {image.at}"
            raise Invalid(
                f"an image is not at its place in the prompt of {prompt} tokens: {place}",
                param="messages",
            )
        end = image.at + image.tokens


def _check_values(sampling: Sampling) -> None:
    for name, field in SAMPLING_FIELDS.items():
        value = getattr(sampling, name)
        for number in value.values() if isinstance(value, dict) else (value,):
            if number is not None and not (isfinite(number) and field.low <= number <= field.high):
                raise Invalid(
                    f"{name} must be between {field.low} and {field.high}, not {number}", param=name
                )


def _check_features(request: EngineRequest, info: EngineInfo) -> None:
    """Raises Invalid for a feature that the engine lacks. `priority` is a hint and never refused."""
    required = required_features(request.sampling)
    if request.guided is not None:
        required.append(("format", "guided"))
    if (
        request.cache_salt is not None and info.block_tokens is not None
    ):  # without a shared cache nothing is shared
        required.append(("cache_salt", "salt"))
    for name, feature in required:
        _require(name, feature, info)


def _require(name: str, feature: str, info: EngineInfo, *, param: str = "") -> None:
    if feature not in info.features:
        why = f": {info.lacking[feature]}" if feature in info.lacking else ""
        raise Invalid(
            f"{name} is not supported by the {info.name} engine of this model{why}",
            param=param or name,
        )

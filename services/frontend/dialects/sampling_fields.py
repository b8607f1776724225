"""The decoding fields that Chat Completions and Completions share: OpenAI's, and those that vLLM and SGLang add."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from schemas.conversation import OutputFormat, Sampling
from schemas.errors import Invalid
from services.frontend.dialects.guided import GuidedFields, guided_format

Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Choices = Annotated[int, Meta(ge=1, le=128)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""What fits the bus; every engine's own limits are narrower."""
Limit = Annotated[int, Meta(ge=0, le=2**63 - 1)]

_MAX_BIAS = 100.0
_ID_DIGITS = 10
_INT64 = 1 << 63


class StreamOptions(Struct):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(GuidedFields):
    """Fields of both requests. `stop` also takes token ids, as Dynamo does."""

    model: str = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Limit | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    stop: str | list[str | Integer] | None = None
    logit_bias: dict[str, float] | None = None
    top_k: Integer | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0)] | None = None
    min_tokens: Limit | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    user: Any = None
    prompt_cache_key: Any = None
    service_tier: Any = None
    priority: Any = None
    cache_salt: Any = None
    nvext: Any = None


def sampling(body: SamplingFields, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """How to choose tokens. Raises Invalid for an empty stop string.

    Biases of what is no token id are dropped (the SDK's own tests send one), biases beyond ±100 are cut to it.
    """
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    strings = [stop for stop in stops if isinstance(stop, str)]
    if "" in strings:
        raise Invalid("Invalid 'stop': a stop sequence may not be empty.", param="stop", code="invalid_value")
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=None if body.seed is None else seed_of_choice(body.seed, 0),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logprobs=logprobs,
        stop=strings,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=[*(body.stop_token_ids or []), *(stop for stop in stops if isinstance(stop, int))],
        include_stop=bool(body.include_stop_str_in_output),
        logit_bias={
            int(token): min(max(bias, -_MAX_BIAS), _MAX_BIAS)
            for token, bias in (body.logit_bias or {}).items()
            if token.isascii() and token.isdigit() and len(token) <= _ID_DIGITS
        },
    )


def seed_of_choice(seed: int, choice: int) -> int:
    """Another seed for each choice, within the 64 bits with sign that every engine takes."""
    return (seed + choice + _INT64) % (2 * _INT64) - _INT64


def output_format(body: SamplingFields, given: OutputFormat | None) -> OutputFormat | None:
    """The form that the text must have: the API's own word, else vLLM's and SGLang's. Raises Invalid."""
    return given or guided_format(body)

"""Reads the request fields that control how tokens are chosen.

`SamplingFields` is the table of all APIs: each field is copied to the field of `Sampling` with its
name. To add a sampling parameter, add it to both, to the worker's admission and to its engines.
`OpenAIFields` are further fields of Chat Completions and Completions, from OpenAI, vLLM and SGLang.
`Nvext` are the scheduling hints of Dynamo's clients, which every API takes.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, Hints, OutputFormat, Sampling
from schemas.errors import Invalid
from services.frontend.apis.shared.field_types import MAX_INTEGER, Integer, Limit, Share
from services.frontend.apis.shared.openai.wording import CacheTtl, unsupported

_Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]

_MAX_BIAS = 100.0
_ID_DIGITS = 10
_INT64 = 1 << 63
_KINDS = ("regex", "choice", "grammar", "structural_tag")


class AgentHints(Struct):
    """An agent's hints."""

    latency_sensitivity: float | None = None
    priority: Integer | None = None
    osl: Limit | None = None
    speculative_prefill: bool | None = None


class Nvext(Struct):
    """Dynamo's extensions of a request."""

    agent_hints: AgentHints | None = None


class CacheLifetime(Struct):
    """The member of OpenAI's `prompt_cache_options` that both APIs have."""

    ttl: CacheTtl | None = None


CACHE_TTLS = {None: 0, "5m": 300, "30m": 1800, "1h": 3600, "12h": 43_200}
"""Seconds of each `ttl` of the APIs."""


def hints(
    nvext: Nvext | None, *, priority: int | None, cache_salt: str | None, ttl: str | None = None
) -> Hints:
    """The hints in a body's `nvext`, `priority` and `cache_salt` (vLLM's spelling). `ttl`: a key of
    `CACHE_TTLS`."""
    agent = AgentHints()
    if nvext is not None and nvext.agent_hints is not None:
        agent = nvext.agent_hints
    if agent.priority is not None:
        priority = agent.priority
    return Hints(
        latency_sensitivity=agent.latency_sensitivity,
        priority=priority,
        osl=agent.osl,
        speculative_prefill=bool(agent.speculative_prefill),
        cache_salt=cache_salt or None,
        retain_s=CACHE_TTLS[ttl],
    )


class SamplingFields(Struct, kw_only=True):
    """Sampling parameters of every API, with vLLM's names and the bounds of OpenAI's API."""

    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INTEGER)] | None = None
    min_p: Share | None = None
    min_tokens: Limit | None = None
    seed: int | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None


def sampling_of(body: SamplingFields, **computed: Any) -> Sampling:
    """The sampling of a request: its fields by name, then `computed`. None means the default of a
    field."""
    values = {name: getattr(body, name) for name in SamplingFields.__struct_fields__} | computed
    if body.seed is not None:
        values["seed"] = _int64(body.seed)
    return Sampling(**{name: value for name, value in values.items() if value is not None})


class StreamOptions(Struct):
    """Optional content of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIFields(SamplingFields, kw_only=True):
    """Fields of both requests. `stop` also takes token ids, as in Dynamo.

    Structured output is also taken in vLLM's (`guided_*`, `structured_outputs`) and SGLang's
    spelling (`json_schema`).
    """

    model: str = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Limit | None = None
    stop: str | list[str | Integer] | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    user: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: CacheLifetime | None = None
    service_tier: Any = None
    priority: Integer | None = None
    cache_salt: str | None = None
    nvext: Nvext | None = None
    guided_json: Any = None
    structured_outputs: dict[str, Any] | None = None
    json_schema: Any = None

    @property
    def session(self) -> str | None:
        """The client's id of the session, if it is a text."""
        key = self.prompt_cache_key
        return key if isinstance(key, str) else None

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether other chunks also carry the token counts."""
        options = self.stream_options
        return self.includes_usage and options is not None and bool(options.continuous_usage_stats)


def openai_hints(body: OpenAIFields) -> Hints:
    """The hints of a Chat Completions or Completions request."""
    ttl = body.prompt_cache_options.ttl if body.prompt_cache_options is not None else None
    return hints(body.nvext, priority=body.priority, cache_salt=body.cache_salt, ttl=ttl)


def openai_sampling(
    body: OpenAIFields, *, max_tokens: int | None, logprobs: int | None
) -> Sampling:
    """The sampling of a Chat Completions or Completions request. Raises Invalid for an empty stop
    string.

    Biases of keys other than token ids are dropped (the SDK's own tests send one), biases beyond
    ±100 are clamped.
    """
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    strings = [stop for stop in stops if isinstance(stop, str)]
    if "" in strings:
        raise Invalid(
            "Invalid 'stop': a stop sequence may not be empty.", param="stop", code="invalid_value"
        )
    ids = [stop for stop in stops if isinstance(stop, int)]
    biases: dict[int, float] = {}
    for token, bias in (body.logit_bias or {}).items():
        if token.isascii() and token.isdigit() and len(token) <= _ID_DIGITS:
            biases[int(token)] = min(max(bias, -_MAX_BIAS), _MAX_BIAS)
    return sampling_of(
        body,
        max_tokens=max_tokens,
        logprobs=logprobs,
        stop=strings,
        stop_token_ids=[*(body.stop_token_ids or []), *ids],
        include_stop=body.include_stop_str_in_output,
        logit_bias=biases,
    )


def for_choice(conversation: Conversation, choice: int) -> Conversation:
    """The conversation of one choice: a seed is varied by choice."""
    sampling = conversation.sampling
    if sampling.seed is None or not choice:
        return conversation
    return replace(conversation, sampling=replace(sampling, seed=_int64(sampling.seed + choice)))


def _int64(seed: int) -> int:
    """Wraps the seed to the signed 64 bits that every engine takes."""
    return (seed + _INT64) % (2 * _INT64) - _INT64


def guided_format(body: OpenAIFields) -> OutputFormat | None:
    """The output format in vLLM's or SGLang's fields; None if there is none.

    Raises Invalid for an invalid schema, and for formats other than JSON, which this server cannot
    guarantee.
    """
    outputs = body.structured_outputs or {}
    for name in _KINDS:
        if outputs.get(name) is not None:
            raise unsupported(f"structured_outputs.{name}")
    for field_path, schema in (
        ("guided_json", body.guided_json),
        ("json_schema", body.json_schema),
        ("structured_outputs.json", outputs.get("json")),
    ):
        if schema is not None:
            return OutputFormat("json_schema", schema=_schema(schema, field_path))
    return OutputFormat("json_object") if outputs.get("json_object") else None


def _schema(schema: Any, field_path: str) -> dict[str, Any]:
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Invalid(
                f"Invalid schema for '{field_path}': {error}",
                param=field_path,
                code="invalid_value",
            ) from None
    if not isinstance(schema, dict):
        raise Invalid(
            f"Invalid schema for '{field_path}': expected an object.",
            param=field_path,
            code="invalid_value",
        )
    return schema

"""The features of engines, and the fields of `Sampling` that require them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from schemas.control import VISION
from schemas.conversation import Sampling


class SamplingField(NamedTuple):
    """The requirements of a field of `Sampling` for engine and value."""

    feature: str
    """Must be in `EngineInfo.features`, unless the value is absent or neutral."""
    low: float
    high: float
    neutral: tuple[Any, ...] = ()
    """Values that change nothing."""


SAMPLING_FIELDS: Mapping[str, SamplingField] = {
    "temperature": SamplingField("sampling", 0.0, 100.0, (0.0,)),
    "top_p": SamplingField("sampling", 0.0, 1.0, (1.0,)),
    "top_k": SamplingField("sampling", -1, 2**31 - 1, (0, -1, 1)),
    "min_p": SamplingField("min_p", 0.0, 1.0, (0.0,)),
    "seed": SamplingField("seed", -(2**63), 2**64 - 1),
    "presence_penalty": SamplingField("penalties", -100.0, 100.0, (0.0,)),
    "frequency_penalty": SamplingField("penalties", -100.0, 100.0, (0.0,)),
    "repetition_penalty": SamplingField("penalties", 1e-3, 100.0, (1.0,)),
    "min_tokens": SamplingField("min_tokens", 0, 2**31 - 1, (0,)),
    "logit_bias": SamplingField("logit_bias", -100.0, 100.0, ({},)),
    "logprobs": SamplingField("logprobs", 0, 1000),
}
"""The fields of `Sampling` that change which tokens an engine chooses or reports. Outside the
ranges engines fail in different ways; some die. `max_tokens` is always set, stop ids have their own
field in `EngineRequest`, and the parser handles stop strings."""


FEATURES = frozenset(
    {field.feature for field in SAMPLING_FIELDS.values()}
    | {
        "top_logprobs",
        "guided",
        "grammar",
        "prefix_cache",
        "kv_events",
        "priority",
        "salt",
        "retention",
        VISION,
    }
)
"""All features of engines. top_logprobs: log probabilities of other tokens than the chosen one;
guided: JSON, and JSON of a schema; grammar: a whole turn by a grammar of llguidance; retention:
prompts that are evicted after others; vision: images in prompts."""


def sampling_values(sampling: Sampling) -> dict[str, Any]:
    """Returns the fields of `SAMPLING_FIELDS` that are set."""
    values = {name: getattr(sampling, name) for name in SAMPLING_FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def required_features(sampling: Sampling) -> list[tuple[str, str]]:
    """Returns (field, feature) for every field that is set and not neutral."""
    required = [
        (name, SAMPLING_FIELDS[name].feature)
        for name, value in sampling_values(sampling).items()
        if value not in SAMPLING_FIELDS[name].neutral
    ]
    if sampling.logprobs:
        required.append(("top_logprobs", "top_logprobs"))
    return required

"""The form of a Chat answer, by the request and the operator's settings."""

from typing import Literal, TypeAlias

from msgspec import Struct

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning", "both"]
ReasoningPlace: TypeAlias = Literal["reasoning_content", "reasoning", "both", "inline", "omitted"]

_TIERS = ("default", "flex", "scale", "priority")


class Settings(Struct, frozen=True):
    """The operator's settings."""

    reasoning_field: ReasoningField = "reasoning_content"
    """The field that holds reasoning."""
    reasoning_details: bool = False
    """Also send the seal of each reasoning block, in OpenRouter's `reasoning_details`."""
    fingerprint: str | None = None
    """`system_fingerprint` of every answer."""


class Shape(Struct, frozen=True):
    """The form of one answer."""

    reasoning: ReasoningPlace = "reasoning_content"
    """`inline`: in the content, in <think> tags (SGLang's `separate_reasoning: false`)."""
    details: bool = False
    legacy: bool = False
    """The call is in `function_call`."""
    freeform: frozenset[str] = frozenset()
    """Names of the freeform tools."""
    logprobs: bool = False
    """Of the content. Those of all tokens come with the ids, where these are requested."""
    include_usage: bool = False
    """The stream ends with the token counts."""
    continuous_usage: bool = False
    """Other chunks carry the token counts, too, once they are known."""
    service_tier: str | None = None
    fingerprint: str | None = None


def answered_tier(requested: object) -> str | None:
    """`service_tier` of the answer, if the request names one."""
    if not isinstance(requested, str):
        return None
    return requested if requested in _TIERS else "default"

"""What a Chat request and its server's settings say about the form of the answer."""

from typing import Literal, TypeAlias

from msgspec import Struct

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning", "both"]
ReasoningPlace: TypeAlias = Literal["reasoning_content", "reasoning", "both", "inline", "omitted"]

_TIERS = ("default", "flex", "scale", "priority")


class Settings(Struct, frozen=True):
    """What the operator says."""

    reasoning_field: ReasoningField = "reasoning_content"
    """Where reasoning is put."""
    reasoning_details: bool = False
    """Send each reasoning block's seal as well, in OpenRouter's `reasoning_details`."""
    fingerprint: str | None = None
    """`system_fingerprint` of every answer."""


class Shape(Struct, frozen=True):
    """The form of one answer."""

    reasoning: ReasoningPlace = "reasoning_content"
    """`inline`: in the content, in <think> tags (SGLang's `separate_reasoning: false`)."""
    details: bool = False
    legacy: bool = False
    """The call goes into `function_call`."""
    freeform: frozenset[str] = frozenset()
    """Names of the freeform tools."""
    logprobs: bool = False
    include_usage: bool = False
    """The stream ends with the token counts."""
    continuous_usage: bool = False
    """Further chunks of the stream carry counts, wherever they are known."""
    service_tier: str | None = None
    fingerprint: str | None = None


def answered_tier(asked: object) -> str | None:
    """`service_tier` of the answer: the one that served it, where the request named one."""
    if not isinstance(asked, str):
        return None
    return asked if asked in _TIERS else "default"

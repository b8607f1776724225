"""Decodes parts of a request's body that stay raw until they are needed, with errors in OpenAI's
wording."""

from types import UnionType
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.shared.decode import tags_of
from services.frontend.apis.shared.openai.wording import Explainer, choices_of
from services.frontend.apis.shared.unknown_parts import UnknownParts

T = TypeVar("T")

_CHOICES = choices_of(
    wire.ResponsesReasoning,
    wire.TextConfig,
    wire.CacheOptions,
    wire.ResponsesBody,
    wire.ResponsesMessage,
    wire.ResponsesTool,
    wire.ResponsesToolChoice,
)
_FORMATS = choices_of(wire.Format)["type"]
_TYPES = {"format.type": _FORMATS, "context_management.type": ("compaction",)}
explain = Explainer(_CHOICES | _TYPES)
"""The native error for a failed validation of the body."""

_KNOWN_PARTS: dict[type, dict[str, UnionType]] = {
    wire.ResponsesMessage: {"content": wire.Part},
    wire.AgentMessage: {"content": wire.AgentPart},
    wire.CallOutput: {"output": wire.Part},
    wire.ReasoningItem: {"content": wire.ReasoningPart, "summary": wire.SummaryPart},
}
"""The parts that an item may have in each of its lists of parts."""


@overload
def convert(kind: type[T], raw: Raw, field_path: str) -> T: ...
@overload
def convert(kind: UnionType, raw: Raw, field_path: str) -> Any: ...
def convert(kind: Any, raw: Raw, field_path: str) -> Any:
    """Decodes the part of the request at `field_path`. Raises Invalid, which names the field."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise explain(bytes(raw), str(error), field_path) from None
    except RecursionError:
        raise Invalid(f"'{field_path}' is nested too deeply.", param=field_path) from None


def convert_item(kind: type[T], raw: Raw, field_path: str, unknown: list[str]) -> T:
    """Decodes the item at `field_path` without the parts of unknown types, which are added to
    `unknown`. `kind`: a key of `_KNOWN_PARTS`. Raises Invalid."""
    try:
        return convert(kind, raw, field_path)
    except Invalid:
        unknown_parts = UnknownParts()
        for name, known in _KNOWN_PARTS[kind].items():
            raw = unknown_parts.replace_in(raw, name, tags_of(known))
        if not unknown_parts.types:
            raise
    unknown += unknown_parts.types
    return convert(kind, raw, field_path)

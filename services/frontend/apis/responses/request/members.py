"""Decodes parts of a request's body that stay raw until they are needed, with errors in OpenAI's
wording."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.shared.decode import tags_of
from services.frontend.apis.shared.openai.wording import Explainer, choices_of
from services.frontend.apis.shared.unknown_parts import part_type

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


def convert_parts(
    kinds: UnionType, parts: Sequence[Raw], field_path: str, unknown: list[str]
) -> Iterator[tuple[Any, str]]:
    """The parts of the list at `field_path`, each with its place. Parts of other types are left
    out, and the types added to `unknown`. Raises Invalid."""
    for index, raw in enumerate(parts):
        part_path = f"{field_path}[{index}]"
        try:
            part = convert(kinds, raw, part_path)
        except Invalid:
            kind = part_type(raw)
            if kind is None or kind in tags_of(kinds):
                raise
            unknown.append(kind)
        else:
            yield part, part_path

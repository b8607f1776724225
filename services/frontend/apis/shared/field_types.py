"""Types of the fields of request bodies, and raw fields, which are decoded later."""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Raw

MAX_INTEGER = 2**63 - 1
Integer = Annotated[int, Meta(ge=-(2**63), le=MAX_INTEGER)]
"""An integer of the bus's format; the limits of every engine are narrower."""
Limit = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
"""A number of tokens."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
"""A tool's name in OpenAI's APIs."""
JsonObject: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
"""An object that keeps its spelling."""
FORMS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "chat_template",
)
"""Fields of vLLM and SGLang for the form of the output, and for the chat template."""


def raw_default(json: bytes) -> Any:
    """The default of a raw member. A factory, since msgspec's schema generator cannot write a `Raw`
    default."""
    return msgspec.field(default_factory=lambda: Raw(json))


NULL = raw_default(b"null")


def is_set(raw: Raw) -> bool:
    """Whether a raw member is present and not null."""
    return bytes(raw) != b"null"

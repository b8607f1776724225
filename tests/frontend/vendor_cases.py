"""A request with one remarkable value, by the field of the SDK's types that has it, and what
becomes of it. `CASES` of each API are in its folder.

refused     400 in the API's form; the third member is a part of the message, which names the field
noted       200; a response header names it
declared    200, though the vendor refuses it, or gives it another effect; the third member is a phrase of
            docs/differences.md or of the API's page
"""

from typing import Any, Literal, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]
Outcome: TypeAlias = Literal["refused", "noted", "declared"]
LONG = "x" * 300
PNG = "iVBORw0KGgo="
USER: Json = {"role": "user", "content": "Hi."}
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
OPEN_SCHEMA: Json = {
    "oneOf": [{"type": "object"}, {"type": "object", "properties": {"ä b": {"minLength": 3}}}]
}


class Case(NamedTuple):
    """A request, and what becomes of it."""

    field: str
    """`Class.field` of the SDK's types."""
    body: Json
    outcome: Outcome
    text: str

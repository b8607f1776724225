"""Structured output in vLLM's and SGLang's fields, as far as it can be kept here: JSON, and JSON of a schema."""

from typing import Any

import msgspec
from msgspec import Struct

from schemas.conversation import OutputFormat
from schemas.errors import Invalid
from services.frontend.dialects.openai_wording import unsupported

_FORMLESS = ("guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf", "structural_tag")
_KINDS = ("regex", "choice", "grammar", "structural_tag")


class GuidedFields(Struct):
    """`structured_outputs` is vLLM's newer spelling, `json_schema` (text) SGLang's."""

    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: dict[str, Any] | None = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    json_schema: Any = None


def guided_format(body: GuidedFields) -> OutputFormat | None:
    """The form that these fields ask for; None where they ask for none.

    Raises Invalid for a schema that is none, and for forms other than JSON: an answer that does not have the form
    which its client was promised would be worse.
    """
    for name in _FORMLESS:
        if getattr(body, name) is not None:
            raise unsupported(name)
    outputs = body.structured_outputs or {}
    for name in _KINDS:
        if outputs.get(name) is not None:
            raise unsupported(f"structured_outputs.{name}")
    for place, schema in (
        ("guided_json", body.guided_json),
        ("json_schema", body.json_schema),
        ("structured_outputs.json", outputs.get("json")),
    ):
        if schema is not None:
            return OutputFormat("json_schema", schema=_schema(schema, place))
    return OutputFormat("json_object") if outputs.get("json_object") else None


def _schema(given: Any, place: str) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Invalid(f"Invalid schema for '{place}': {error}", param=place, code="invalid_value") from None
    if not isinstance(given, dict):
        raise Invalid(f"Invalid schema for '{place}': expected an object.", param=place, code="invalid_value")
    return given

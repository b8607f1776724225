"""Failed validations of a request's parts, in the words of the native API: `openai_wording` with this API's values."""

from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.dialects.openai_wording import explainer, invalid_value, missing_parameter, unsupported
from services.frontend.dialects.responses import wire

__all__ = ["convert", "explain", "invalid_value", "missing_parameter", "refuse", "unsupported"]

T = TypeVar("T")


def _literals(hint: Any) -> list[str]:
    found: list[str] = []
    for argument in get_args(hint):
        found += [argument] if isinstance(argument, str) else _literals(argument)
    return found


def _choices(*fields: tuple[type, str]) -> dict[str, list[str]]:
    return {name: _literals(get_type_hints(owner)[name]) for owner, name in fields}


_PARTS = [str(kind.__struct_config__.tag) for kind in get_args(wire.Part)]

explain = explainer(
    {
        **_choices(
            (wire.Reasoning, "effort"),
            (wire.Reasoning, "summary"),
            (wire.Reasoning, "generate_summary"),
            (wire.Reasoning, "context"),
            (wire.TextConfig, "verbosity"),
            (wire.Body, "truncation"),
            (wire.Message, "role"),
            (wire.Tool, "execution"),
            (wire.ToolChoice, "mode"),
        ),
        "format.type": _literals(get_type_hints(wire.Format)["type"]),
        "content.type": _PARTS,
        "output.type": _PARTS,
    }
)
"""The native error for a failed validation of the body."""


def convert(decoder: msgspec.json.Decoder[T], raw: Raw | bytes, place: str) -> T:
    """A part of the request as `decoder`'s type. `place`: where it stands. Raises Invalid that names the field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        raise explain(b"null", f"{what} - at `$.{place}{path or '`'}") from None
    except RecursionError:
        raise Invalid(f"'{place}' is nested too deeply.", param=place) from None


def refuse(place: str, why: str = "is not supported by this server") -> NoReturn:
    """Raises `unsupported`."""
    raise unsupported(place, why)

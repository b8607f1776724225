"""Writes bare text, up to the marker that ends it, as a JSON value of the type that the tool's
schema gives it.

Strings stream. If a schema admits several types, the first of these that fits is taken: null,
integer, number, boolean, object, array, string. Values are never guessed: one that fits none of
them is a string, and so is every value of a parameter that is a string in the schema, or missing
there.
"""

from collections.abc import Callable, Collection
from typing import Final, TypeVar

from services.families.grammar.scanner import PlainStretch, Reader, Scanner, quoted
from services.families.grammar.shapes import MORE, MarkerMatch, Markers, More
from services.families.readers.numbers import number_text
from services.families.readers.python_values import literal
from services.families.readers.value_sinks import NULLS, TextSink

T = TypeVar("T")
_BOOLEANS: Final = {"true": "true", "false": "false", "1": "true", "0": "false"}


def copy_text(
    scanner: Scanner,
    markers: Markers[T],
    ends: Callable[[MarkerMatch[T], bool], bool],
    sink: TextSink,
    stretch: PlainStretch | None,
    *,
    mentionable: Collection[T] = (),
) -> Reader[MarkerMatch[T] | None]:
    """Writes text up to the first marker that `ends` it, and stops in front of that marker; None at
    the input's end.

    `ends` gets each marker once, after the text before it, and whether the text only mentions it
    (a backtick follows), for meanings that are `mentionable`. `stretch`: what is plain in the text;
    None: all of it passes this reader.
    """
    look = scanner.position
    while True:
        marker, end = _next_marker(scanner, markers, look, mentionable)
        if end > scanner.position:
            piece = scanner.text[scanner.position : end]
            scanner.position = end
            sink.write(piece)

        if isinstance(marker, MarkerMatch):
            if ends(marker, scanner.text.startswith("`", marker.match.end())):
                return marker
            look = marker.match.end() if marker.meaning in mentionable else end + 1
        elif scanner.final:
            return None
        else:
            yield stretch if marker is None and sink.live else None
            look = scanner.position


def _next_marker(
    scanner: Scanner, markers: Markers[T], look: int, mentionable: Collection[T]
) -> tuple[MarkerMatch[T] | More | None, int]:
    """The first marker from `look` on, and where the text before it ends. MORE: the next input
    decides whether it is one, or a mention of one; None: there is none."""
    text = scanner.text
    final = scanner.final
    at = markers.find(text, look, final)
    while at >= 0:
        marker = markers.at(text, at, final)
        if marker is MORE:
            return MORE, at
        if isinstance(marker, MarkerMatch):
            at_end = marker.match.end() == len(text) and not final
            is_undecided = at_end and marker.meaning in mentionable
            return MORE if is_undecided else marker, at
        at = markers.find(text, at + 1, final)
    return None, len(text)


def coerced(text: str, types: frozenset[str]) -> str:
    """Returns `text` as JSON of the first of `types` that fits, else as a JSON string."""
    bare = text.strip()
    return (
        _null(bare, types)
        or _number(bare, types)
        or _boolean(bare, types)
        or _container(bare, types)
        or quoted(text)
    )


def _null(bare: str, types: frozenset[str]) -> str | None:
    if "null" not in types:
        return None
    return "null" if bare in NULLS else None


def _number(bare: str, types: frozenset[str]) -> str | None:
    if "number" in types:
        return number_text(bare, fraction=True)
    if "integer" in types:
        return number_text(bare, fraction=False)
    return None


def _boolean(bare: str, types: frozenset[str]) -> str | None:
    if "boolean" not in types:
        return None
    return _BOOLEANS.get(bare.lower())


def _container(bare: str, types: frozenset[str]) -> str | None:
    is_object = bare[:1] == "{" and "object" in types
    is_array = bare[:1] == "[" and "array" in types
    if not is_object and not is_array:
        return None
    return literal(bare)


def json_or_string(text: str) -> str:
    """Returns `text` as JSON if it is a JSON or Python literal, else as a JSON string."""
    return literal(text) or quoted(text)


def json_string_or_string(text: str) -> str:
    """Returns `text` as a JSON string, unless it is one already."""
    value = literal(text)
    if value is not None and value[0] == '"':
        return value
    return quoted(text)

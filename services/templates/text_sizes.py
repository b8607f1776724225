"""Limits the texts that a chat template makes, by their sizes before they are made. Pure.

A few characters of a template can ask for gigabytes (`x.replace("a", x)`, `"%999999999d" % 1`, a
text that is doubled in a loop). Time does not limit that: one call makes the whole text. The number
of texts is limited by the time of a rendering.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias

from jinja2.exceptions import TemplateRuntimeError

MAX_CHARS = 16 * 1024 * 1024
"""Limit of a text or list that a template makes. A request has 8 MB of text at most."""
MAX_BITS = 1 << 16
"""Limit of a number that a template makes."""
MAX_INDENT = 64
"""Limit of the indentation of JSON."""
_MAX_WIDTH_DIGITS = 5
_WIDE_FIELD = re.compile(
    rf"%[^a-zA-Z%]*(?:\*|\d{{{_MAX_WIDTH_DIGITS + 1}}})"
    rf"|\{{[^{{}}]*(?:\{{|\d{{{_MAX_WIDTH_DIGITS + 1}}})"
)
"""A field of a format with a large width, or with one that it takes from the values."""

_SIZED = (str, list, tuple)
SizeOf: TypeAlias = Callable[..., int]
"""Returns the size of what a call makes, from its arguments."""
Filter: TypeAlias = Callable[..., Any]


class TextTooLong(TemplateRuntimeError):
    """A template would make a text beyond `MAX_CHARS`."""


def check_size(size: int) -> None:
    """Raises TextTooLong for a text or list of this length."""
    if size > MAX_CHARS:
        raise _too_long()


def _too_long() -> TextTooLong:
    return TextTooLong(f"it makes a text of more than {MAX_CHARS} characters")


def concat(pieces: Iterable[str], separator: str = "") -> str:
    """The joined pieces. Raises TextTooLong."""
    kept: list[str] = []
    size = 0
    gap = len(separator)
    for piece in pieces:
        kept.append(piece)
        size += len(piece) + gap
        if size > MAX_CHARS:
            break
    check_size(size)
    return separator.join(kept)


def add(left: Any, right: Any) -> Any:
    """The result of `+`. Raises TextTooLong; until then, it has twice the limit at most."""
    total = left + right
    if isinstance(total, _SIZED) and len(total) > MAX_CHARS:
        raise _too_long()
    return total


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raises TextTooLong where an operator other than `+` would make a text, list or number that is
    too large."""
    if operator == "*":
        _check_product(left, right)
    elif operator == "%" and isinstance(left, str):
        check_format(left, right if isinstance(right, tuple) else (right,))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * right)


def check_format(text: str, values: Sequence[Any]) -> None:
    """Raises TextTooLong where a format would make too long a text, or may."""
    fields = text.replace("{{", "")
    if _WIDE_FIELD.search(fields):
        raise TextTooLong("it formats a field of a large width, or of one that it computes")
    longest = max((len(value) for value in values if _has_length(value)), default=0)
    longest = max(longest, 10**_MAX_WIDTH_DIGITS) if re.search(r"\d", fields) else longest
    check_size(len(text) + (fields.count("%") + fields.count("{")) * longest)


def check_method(method: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raises TextTooLong where a method of a text would make too long a one."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, str):
        _check_call(_METHODS.get(method.__name__), (owner, *args), named)


def limited(name: str, filter: Filter) -> Filter:
    """A filter that raises TextTooLong where it would make too long a text."""
    size_of = _FILTERS.get(name)
    if size_of is None:
        return filter
    skipped = 1 if hasattr(filter, "jinja_pass_arg") else 0

    @wraps(filter)
    def checked(*args: Any, **named: Any) -> Any:
        _check_call(size_of, args[skipped:], named)
        return filter(*args, **named)

    return checked


def _check_call(size_of: SizeOf | None, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Checks what a call makes. Arguments that it refuses itself are left to it."""
    if size_of is None:
        return
    try:
        size = size_of(*args, **named)
    except (TypeError, AttributeError):
        return
    check_size(size)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(left, int) and _has_length(right):
        check_size(left * len(right))
    elif isinstance(right, int) and _has_length(left):
        check_size(len(left) * right)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TextTooLong("it makes a number of too many digits")


def _has_length(value: Any) -> bool:
    return isinstance(value, _SIZED)


def _replaced(s: str, old: str, new: str, count: int | None = None) -> int:
    return len(s) + str(s).count(str(old)) * len(str(new))


def _padded(value: str, width: int = 80, _fill: str = " ") -> int:
    return width


def _indented(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> int:
    indent = len(width) if isinstance(width, str) else width
    return len(s) + (s.count("\n") + 1) * indent


def _expanded(text: str, tabsize: int = 8) -> int:
    return len(text) + text.count("\t") * tabsize


def _wrapped(
    s: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> int:
    lines = len(s) // max(width, 1) + s.count("\n") + s.count(" ") + 1
    return len(s) + lines * len(wrapstring or "\n")


def _translated(text: str, table: Mapping[Any, Any]) -> int:
    longest = max((len(new) for new in table.values() if isinstance(new, str)), default=1)
    return len(text) * max(longest, 1)


def _batched(value: Any, linecount: int, fill_with: Any = None) -> int:
    return linecount


def _sliced(value: Any, slices: int, fill_with: Any = None) -> int:
    return slices


_METHODS: Mapping[str, SizeOf] = {
    "center": _padded,
    "expandtabs": _expanded,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "translate": _translated,
    "zfill": _padded,
}
"""The size of what a method of a text makes, from the text and the method's arguments."""
_FILTERS: Mapping[str, SizeOf] = {
    "batch": _batched,
    "center": _padded,
    "indent": _indented,
    "replace": _replaced,
    "slice": _sliced,
    "wordwrap": _wrapped,
}
"""The size of what a filter makes. The names of parameters are those of Jinja's filters."""

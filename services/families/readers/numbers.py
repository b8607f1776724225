"""Numbers of JSON and of Python, as JSON."""

import re
from decimal import Decimal
from typing import Final

_MAX_DIGITS: Final = 309
"""Digits of a whole number that has an exponent or a fraction: those of the largest numbers of most
languages."""
_MAX_EXPONENT: Final = len("e+308")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,4096}\Z")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_LOOSE_NUMBER: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)?)\Z")


def number_text(text: str, fraction: bool) -> str | None:
    """Returns `text` as a JSON number, unchanged if it is one; None if it is none. Without
    `fraction` it must be whole, and is written as an integer."""
    sign = "-" if text[:1] == "-" else ""
    if _INTEGER.match(text):
        return sign + (text.lstrip("+-").lstrip("0") or "0")
    loose = _LOOSE_NUMBER.match(text)
    if loose is None or not (loose[2] or loose[3]):
        return None
    if not fraction:
        return _whole(text, exponent=loose[4])
    if _NUMBER.match(text):
        return text
    whole = loose[2].lstrip("0") or "0"
    return f"{sign}{whole}.{loose[3] or '0'}{loose[4]}"


def _whole(text: str, *, exponent: str) -> str | None:
    """A number as an integer; None if it has a fraction or too many digits."""
    if len(exponent) > _MAX_EXPONENT:
        return None
    number = Decimal(text)
    if number.adjusted() >= _MAX_DIGITS or number != number.to_integral_value():
        return None
    return str(int(number))

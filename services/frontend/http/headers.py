"""Reads request headers, and defines headers of every response."""

from collections.abc import Mapping

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
"""Set on every response that does not set them itself: no MIME sniffing, no caching."""


def first_values(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the first value that is not empty of each header, by its name in lower case."""
    values: dict[str, str] = {}
    for name, value in headers.items():  # repeated headers come one by one
        if value:
            values.setdefault(name.lower(), value)
    return values


def header_flag(headers: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns the boolean in a header."""
    return default if name not in headers else headers[name].lower() in ("1", "true")

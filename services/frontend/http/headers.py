"""Reads request headers, and defines headers of every response."""

from collections.abc import Mapping, Sequence

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
"""Set on every response that does not set them itself: no MIME sniffing, no caching."""


def first_header(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Returns the first of these headers that is not empty, for values that clients send under different names."""
    return next((headers[name] for name in names if headers.get(name)), None)


def header_flag(headers: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns the boolean in a header."""
    return default if name not in headers else headers[name].lower() in ("1", "true")

"""Replaces bytes of request headers that are not UTF-8. aiohttp reads them as surrogates, which cannot be encoded."""

from typing import Any

from aiohttp import web


def replace_invalid_bytes(server: Any) -> None:
    """Replaces them in all requests of a `web.Server`, before aiohttp itself reads a header."""
    make_request = server.request_factory

    def make_valid(*parts: Any) -> web.BaseRequest:
        request: web.BaseRequest = make_request(*parts)
        if all(map(str.isascii, request.headers.values())):
            return request
        return request.clone(headers=[(name, _valid(name, value)) for name, value in request.headers.items()])

    server.request_factory = make_valid


def _valid(name: str, value: str) -> str:
    """Returns the value of a header as it can be encoded; different bytes stay different, since they may be an id."""
    valid = value.encode(errors="replace").decode()
    if valid == value or name.lower() == "user-agent":  # the latter is only shown
        return valid
    # No other value has a zero byte: servers refuse it.
    return "\0" + value.encode(errors="surrogateescape").decode("latin-1")

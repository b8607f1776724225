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
    data = value.encode(errors="surrogateescape")
    if name.lower() == "user-agent":  # only shown
        return value.encode(errors="replace").decode()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\0" + data.decode("latin-1")  # no other value has a zero byte: servers refuse it

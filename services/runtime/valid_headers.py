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
        headers = [(name, value.encode(errors="replace").decode()) for name, value in request.headers.items()]
        return request.clone(headers=headers)

    server.request_factory = make_valid

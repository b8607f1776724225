"""Guards HTTP servers against headers of requests: foreign host names, and bytes that are not
UTF-8. Pure.

A page with a host name that was made to resolve to this server's address (DNS rebinding) is
refused: for the browser, its requests have the same origin.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from schemas.errors import Forbidden


class AllowedHosts:
    """The host names of this server, which the `Host` header of requests must match.

    localhost and IP addresses are always allowed: browsers do not look them up, so no page can use
    them for its name.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: host names without port; `*` for all."""
        self._all = "*" in names
        self._names = {"localhost", *(name.strip("[]").rstrip(".").lower() for name in names)}

    @classmethod
    def of(cls, configured: Sequence[str], listening: str, *, guarded: bool) -> "AllowedHosts":
        """The configured names. The default is `listening`, the address of the listener, if only
        this machine reaches it and there are no keys; otherwise all names."""
        if configured:
            return cls(configured)
        return cls([listening] if is_loopback(listening) and not guarded else ["*"])

    def allows(self, host: str) -> bool:
        """Whether a `Host` header has a name of this server."""
        if self._all:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:  # brackets without an address
            name = host
        return name in self._names or _is_address(name)

    def check(self, host: str) -> None:
        """Raises Forbidden for the `Host` header of a request to a name that is not this
        server's."""
        if not self.allows(host):
            raise Forbidden(
                f"This server has no host name {host[:200]!r}; it can be allowed with "
                "--allowed-hosts.",
                "host",
            )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Whether a host name or address can be reached from this machine only."""
    return name.lower() == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def replace_invalid_bytes(server: Any) -> None:
    """Replaces bytes that are not UTF-8 in the header values of all requests of a `web.Server`,
    before aiohttp reads them: it makes surrogates of them, which cannot be encoded."""
    make_request = server.request_factory

    def make_valid(*parts: Any) -> Any:
        request = make_request(*parts)
        if all(map(str.isascii, request.headers.values())):
            return request
        return request.clone(
            headers=[(name, _valid(name, value)) for name, value in request.headers.items()]
        )

    server.request_factory = make_valid


def _valid(name: str, value: str) -> str:
    """The value of a header as it can be encoded; different bytes stay different, since they may be
    an id."""
    valid = value.encode(errors="replace").decode()
    if valid == value or name.lower() == "user-agent":  # the latter is only shown
        return valid
    # No other value has a zero byte: servers refuse it.
    return "\0" + value.encode(errors="surrogateescape").decode("latin-1")

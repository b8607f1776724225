"""Reads the hosts of URLs that clients and models write, and decides which of them are public.
Pure."""

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

MAX_URL_CHARS = 2048
WEB_SCHEMES = ("http", "https")
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa")


def host_of(url: str, schemes: Collection[str] = WEB_SCHEMES) -> str | None:
    """Returns the host of a URL; None if there is none, or if the URL has another scheme."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in schemes or not host:
        return None
    return host.rstrip(".")


def matches(host: str, pattern: str) -> bool:
    """Returns whether a host is the one that a pattern names: `*.example.org` is every host below
    `example.org`."""
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) or host == pattern
    return host == pattern


def is_public(host: str) -> bool:
    """Returns whether a host is neither a local name nor a private address. Resolves no names."""
    if any(host == name or host.endswith("." + name) for name in _LOCAL_NAMES):
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:  # 127.1, 2130706433 and 0x7f000001 are addresses to resolvers
            address = ipaddress.ip_address(socket.inet_aton(host))
        except OSError:
            return True
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_global)

"""Reads the hosts of URLs that clients and models write, and decides which of them are public.
Pure."""

import ipaddress
import socket
from collections.abc import Collection, Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

MAX_URL_CHARS = 2048
WEB_SCHEMES = ("http", "https")
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""Sources: RFC 6052, RFC 8215."""
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa")


def is_url(url: str) -> bool:
    """Returns whether a text can be a URL: it has no control characters, which Python's parser
    would skip, and its parts can be parsed."""
    if not url.isprintable():
        return False
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port
    except ValueError:
        return False
    return True


def host_of(url: str, schemes: Collection[str] = WEB_SCHEMES) -> str | None:
    """Returns the host of a URL; None if there is none, or if the URL has another scheme."""
    if not is_url(url):
        return None
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def path_of(url: str) -> str:
    """Returns the path of a URL, which begins with a slash."""
    if not is_url(url):
        return "/"
    return urlsplit(url).path or "/"


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
        return _is_public_address(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:  # 127.1, 2130706433 and 0x7f000001 are addresses to resolvers
        return _is_public_address(ipaddress.ip_address(socket.inet_aton(host)))
    except (OSError, ValueError):  # a name, also one with letters beyond ASCII
        return True


def _is_public_address(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public_address(address.ipv4_mapped)
        if address.is_site_local or not all(map(_is_public_address, _embedded(address))):
            return False
    return address.is_global and not address.is_multicast


def _embedded(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses that a gateway makes of an IPv6 address."""
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if any(address in network for network in _NAT64):
        yield ipaddress.IPv4Address(address.packed[-4:])

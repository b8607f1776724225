"""Decides which hosts of URLs from clients and models are public. Pure."""

import ipaddress
import socket

MAX_URL_CHARS = 2048
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa")


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

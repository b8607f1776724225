"""Masks users, passwords and tokens in URLs, for logs and messages."""

import re

# A password may have unescaped characters: all up to the last @ is masked, also where the scheme is
# missing.
_PIECES = re.compile(r"([\s\"]|://)")
_USER = re.compile(r"(?:^|[/:=\"'(])([^/:=\"'(]+):")
_SERVERS = re.compile(r"(,\s*(?=[a-z]+://))", re.IGNORECASE)
MASKED = "***@"
_USERS = re.compile(r"\A([a-z]+://)?.*@", re.DOTALL | re.IGNORECASE)


def mask_passwords(text: object) -> str:
    """`text` with the user and the password of every URL replaced."""
    pieces = _PIECES.split(str(text))  # one pattern for the whole text would take quadratic time
    for at in range(0, len(pieces), 2):
        if "@" not in pieces[at]:
            continue
        if at and pieces[at - 1] == "://":
            pieces[at] = _mask_url(pieces[at - 2], pieces[at])
        else:
            pieces[at] = _mask_login(pieces[at])
    return "".join(pieces)


def _mask_url(scheme: str, rest: str) -> str:
    """Masks the logins in a URL without spaces, in two parts around its `://`."""
    authority = rest
    if not scheme.endswith(("nats", "tls")):
        authority = rest.partition("/")[0]
    host = authority.rfind("@") + 1
    if not host:
        return _mask_login(rest)
    return MASKED + _mask_login(rest[host:])


def _mask_login(text: str) -> str:
    """Masks the login before the last @, if it has a user and a password."""
    login, at, address = text.rpartition("@")
    user = _USER.search(login)
    if user is None:
        return login + at + address
    return login[: user.start(1)] + MASKED + address


def mask_servers(urls: str) -> str:
    """The setting `nats_url` without users, passwords and tokens."""
    return "".join(_USERS.sub(r"\1***@", part) for part in _SERVERS.split(urls))

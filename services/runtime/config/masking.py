"""Masks users, passwords and tokens in URLs, for logs and messages."""

import re

# A password may have unescaped characters: all up to the last @ is masked, also where the scheme is
# missing.
_PIECES = re.compile(r"([\s\"]|://)")
_USER = re.compile(r"(?:^|[/:=\"'(])([^/:=\"'(]+):")
_SERVERS = re.compile(r"(,\s*(?=[a-z]+://))", re.IGNORECASE)
_USERS = re.compile(r"\A([a-z]+://)?.*@", re.DOTALL | re.IGNORECASE)


def mask_passwords(text: object) -> str:
    """Returns `text` with the user and the password of every URL replaced."""
    pieces = _PIECES.split(str(text))  # one pattern for the whole text would take quadratic time
    for at in range(0, len(pieces), 2):
        if "@" in pieces[at]:
            pieces[at] = _mask_piece(
                pieces[at], pieces[at - 2] if at and pieces[at - 1] == "://" else None
            )
    return "".join(pieces)


def _mask_piece(piece: str, scheme: str | None) -> str:
    """Masks the login in a text without spaces. `scheme`: what comes before `://`; None: it does
    not begin a URL."""
    host = 0
    if scheme is not None:
        authority = piece if scheme.endswith(("nats", "tls")) else piece.partition("/")[0]
        host = authority.rfind("@") + 1
    login, found, address = piece[host:].rpartition("@")
    if (user := _USER.search(login)) is not None:
        login, found = login[: user.start(1)], "***@"
    return ("***@" if host else "") + login + found + address


def mask_servers(urls: str) -> str:
    """Returns the setting `nats_url` without users, passwords and tokens."""
    return "".join(_USERS.sub(r"\1***@", part) for part in _SERVERS.split(urls))

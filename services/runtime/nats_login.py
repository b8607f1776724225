"""Reads from the configuration where the NATS servers are, and as which user to connect."""

import asyncio
import re
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from services.runtime.config import BusConfig, read_secret

_CREDENTIALS = re.compile(r"-BEGIN NATS USER JWT-+\s+\S.*-BEGIN USER NKEY SEED-+\s+\S", re.DOTALL)


class Login(NamedTuple):
    """As which user to connect: by the text of a credentials file, by a token, by name and password, or as none."""

    user: str = ""
    password: str = ""
    token: str = ""
    credentials: str = ""


def parse_servers(urls: str) -> dict[str, SplitResult]:
    """The servers of a setting `nats_url` by HOST[:PORT]. Raises ValueError for what is no URL of a NATS server.

    Each is `nats://[USER[:PASSWORD]@]HOST[:PORT]` or `tls://`; a user without a password is a token.
    """
    servers = {}
    for url in map(str.strip, urls.split(",")):
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        if parts.scheme not in ("nats", "tls"):
            raise ValueError(f"{parts.scheme}:// is not supported; a NATS server's URL begins with nats:// or tls://")
        if not parts.hostname or parts.port == 0:  # `port` raises ValueError where it is no number
            raise ValueError("a NATS server's URL needs a host")
        servers[parts.netloc.rpartition("@")[2]] = parts
    return servers


async def read_login(config: BusConfig, url: SplitResult) -> Login:
    """The login for a server. Reads secret files anew, off the loop. Raises ValueError, naming the file."""
    if config.nats_creds_file:
        text = await asyncio.to_thread(read_secret, config.nats_creds_file)
        if not _CREDENTIALS.search(text):  # nats-py would look for the JWT for ever
            raise ValueError(f"{config.nats_creds_file}: not a NATS credentials file")
        return Login(credentials=text)
    user, password = config.nats_user or unquote(url.username or ""), unquote(url.password or "")
    if config.nats_password_file:
        password = await asyncio.to_thread(read_secret, config.nats_password_file)
    elif not config.nats_user and url.password is None:
        return Login(token=user)
    return Login(user, password)

"""Reads servers, login and TLS settings of a NATS connection from the configuration."""

import asyncio
import re
import ssl
from urllib.parse import SplitResult, unquote, urlsplit

from services.runtime.config.base import read_secret
from services.runtime.config.service import BusConfig
from services.runtime.nats.tls_files import TlsFiles

_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%\w+)?")
_CREDENTIALS = re.compile(r"-BEGIN NATS USER JWT-+\s+\S.*-BEGIN USER NKEY SEED-+\s+\S", re.DOTALL)


def parse_servers(urls: str) -> dict[str, SplitResult]:
    """Parses the setting `nats_url` into servers by HOST[:PORT]. Raises ValueError if one is not a
    NATS server's URL.

    Each is `nats://[USER[:PASSWORD]@]HOST[:PORT]`, the same with `tls://`, or `HOST:PORT`; a user
    without a password is a token.
    """
    servers = {}
    for url in map(str.strip, urls.split(",")):
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            # `port` raises ValueError if it is not a number.
            has_host = bool(parts.hostname) and parts.port != 0
        except ValueError:  # its text may quote a password
            raise ValueError(
                "not a NATS URL; `@ / : , ? #` and blanks in passwords must be %-encoded"
            ) from None
        if parts.scheme not in ("nats", "tls"):
            raise ValueError("a NATS server's URL begins with nats:// or tls://")
        if not has_host:
            raise ValueError("a NATS server's URL needs a host")
        if not _HOST.fullmatch(parts.hostname or "") or parts.path.strip("/"):
            raise ValueError("not a NATS URL, which is nats://HOST[:PORT]")
        if "://" not in url and parts.port is None:
            raise ValueError(
                "not a NATS URL, which is nats://HOST[:PORT]; a host alone needs a port"
            )
        servers[parts.netloc.rpartition("@")[2]] = parts
    return servers


async def read_login(config: BusConfig, url: SplitResult) -> dict[str, str]:
    """The login for a server: `credentials` (the text of a file), a `token`, `user` and `password`,
    or none.

    Reads the secret files off the loop. Raises ValueError, which names the file.
    """
    if config.nats_creds_file:
        text = await asyncio.to_thread(read_secret, config.nats_creds_file)
        if not _CREDENTIALS.search(text):  # nats-py would look for the JWT forever
            raise ValueError(f"{config.nats_creds_file}: not a NATS credentials file")
        return {"credentials": text}
    user = config.nats_user or unquote(url.username or "")
    password = unquote(url.password or "")
    if config.nats_password_file:
        password = await asyncio.to_thread(read_secret, config.nats_password_file)
    elif not config.nats_user and url.password is None:
        return {"token": user} if user else {}
    return {"user": user, "password": password} if user or password else {}


async def read_tls(config: BusConfig) -> ssl.SSLContext | None:
    """The TLS settings; None: the system's authorities, and no certificate. Reads the files off the
    loop.

    Raises ValueError, which names the file.
    """
    if not config.nats_ca_file and not config.nats_cert_file:
        return None
    return await asyncio.to_thread(_tls_context, config)


def _tls_context(config: BusConfig) -> ssl.SSLContext:
    files = TlsFiles(config.nats_cert_file, config.nats_key_file, config.nats_ca_file)
    file = config.nats_ca_file
    try:
        context = ssl.create_default_context(cafile=file)
        if config.nats_cert_file:
            file = f"{config.nats_cert_file} or its key"
            files.load_certificate(context)
    except ssl.SSLError as error:
        raise ValueError(files.fault(error)) from error
    except OSError as error:
        raise ValueError(f"cannot use {file}: {error.strerror}") from error
    return context

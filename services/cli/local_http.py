"""Requests pages from processes on this machine, with the standard library: aiohttp takes 0.1 s to import."""

import http.client
import ssl
import urllib.error
import urllib.request

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}


def reachable(host: str) -> str:
    """The host for URLs of a listener on `host`, for clients on this machine."""
    host = _EVERYWHERE.get(host, host)
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def get(url: str, timeout_s: float) -> tuple[int, bytes]:
    """Status and body. Raises OSError."""
    # On this machine there is no proxy, and a certificate need not contain this address.
    context = ssl._create_unverified_context()
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error!r}") from error

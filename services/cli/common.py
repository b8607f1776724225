"""Code that commands share: errors for the user, atomic writes of files, and requests to processes of this machine."""

import http.client
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}


class CommandError(Exception):
    """The command failed. The text is for the user."""

    status = 1


class UsageError(CommandError):
    """The command line is wrong."""

    status = 2


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a new file. Raises FileExistsError, or another OSError."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)


def read_text(path: Path) -> str:
    """Returns the text of a file. Raises UsageError, with the file's name, if it is not UTF-8; OSError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error}") from None


def append_to_file(path: Path, mode: int = 0o600) -> IO[bytes]:
    """Opens a file to append to. A new file gets this mode. Raises OSError."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode), "ab")


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file atomically: no reader sees a part of it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    create_file(partial, data, mode)
    partial.replace(path)


def reachable_host(host: str) -> str:
    """Returns the host to use in URLs of a listener on `host`, for clients on this machine."""
    host = _LOOPBACK.get(host, host)
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def get(url: str, timeout_s: float) -> tuple[int, bytes]:
    """Requests a URL; returns status and body. Raises OSError."""
    # Requests to this machine need no proxy, and the certificate may lack this address.
    context = ssl._create_unverified_context()
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error!r}") from error

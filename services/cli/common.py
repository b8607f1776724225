"""Code that commands share: errors for the user, exit statuses in words, atomic writes of files,
ports, and requests to processes of this machine."""

import errno
import http.client
import os
import signal
import socket
import ssl
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO

from services.runtime.request_headers import AllowedHosts

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
_NODE_EXPORTER = 9100
_ELSEWHERE = ("192.0.2.1", 9)
"""An address of RFC 5737, to which the system has a route if it has one to other networks."""


class CommandError(Exception):
    """The command failed. The text is for the user."""

    status = 1


class UsageError(CommandError):
    """The command line is wrong."""

    status = 2


def describe_status(status: int) -> str:
    """An exit status in words: `status 1`, `killed by SIGSEGV`."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a new file. Raises FileExistsError, or another OSError."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)


def read_text(path: Path) -> str:
    """The text of a file. Raises UsageError, with the file's name, if it is not UTF-8; OSError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error}") from None


def append_to_file(path: Path) -> IO[bytes]:
    """Opens a file to append to. Only its owner can read a new file. Raises OSError."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file atomically: no reader sees a part of it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    create_file(partial, data, mode)
    partial.replace(path)


def make_private(path: Path) -> None:
    """Takes the rights of others from a file that has a secret, if all users have some; a group's
    alone stay, because they were set on purpose. Raises OSError."""
    mode = path.stat().st_mode
    if mode & 0o007:
        path.chmod(mode & 0o700)


def reachable_host(host: str) -> str:
    """The host to use in URLs of a listener on `host`, for clients on this machine."""
    host = _LOOPBACK.get(host, host)
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def other_machines_hosts(host: str, allowed: AllowedHosts) -> list[str]:
    """The hosts by which other machines reach a server that listens on `host`: this machine's name,
    if the server allows it, and address where it listens on all addresses; elsewhere none."""
    if host not in _LOOPBACK:
        return []
    hosts = list(filter(allowed.allows, [socket.gethostname()]))
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)  # this sends nothing
        hosts.append(probe.getsockname()[0])
    return hosts


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


def reserve_ports(
    host: str, port: int, count: int, flags: tuple[str, str] = ("--host", "--port")
) -> list[int]:
    """`port` unless it is 0, and free ports for the others. Only servers that name a port can
    listen on it. `flags`: those that set host and port, for the error.

    Raises OSError, with the port and a remedy, if the port is in use.
    """
    ports = []
    for number in [port, *[0] * (count - 1)]:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, number))
            except OSError as error:
                hint = _port_hint(error, number, *flags)
                raise OSError(f"port {number} on {host} {hint}") from error
            if not number:
                _reserve(listener)
            ports.append(int(listener.getsockname()[1]))
    return ports


def _port_hint(error: OSError, port: int, host_flag: str, port_flag: str) -> str:
    """Why a server cannot listen on a port, and what to do."""
    if error.errno == errno.EADDRINUSE:
        user = " (the default port of Prometheus' node_exporter)" if port == _NODE_EXPORTER else ""
        return f"is in use{user}; choose another with {port_flag}, or {port_flag} 0 for a free one"
    reason = f"cannot be used: {error.strerror}; choose another with"
    if error.errno == errno.EACCES:
        return f"{reason} {port_flag}, such as {port + 8000}"
    return f"{reason} {host_flag}, such as 127.0.0.1"


def _reserve(listener: socket.socket) -> None:
    """Leaves a connection in TIME_WAIT on the port. For a minute, the system then assigns it to no
    socket that binds to port 0, so it is still free when its server starts."""
    listener.listen()
    with socket.create_connection(listener.getsockname()[:2]):
        listener.accept()[0].close()  # the end that closes first has the TIME_WAIT

"""The HTTP client of one server: JSON, texts and streams of events, over one connection pool."""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgspec

CONNECT_S = 5.0
ASK_S = 20.0
"""Longest time of an answer that is not a stream."""
MAX_EVENT_BYTES = 16 << 20
MAX_EXPERTS_BYTES = 512 << 20
"""Longest event that may have the experts of all tokens of a turn."""
MAX_MESSAGE_CHARS = 500
"""Longest part of a server's error that is passed on."""
MAX_BODY_BYTES = 16 << 20
_DATA = b"data:"
_DONE = b"[DONE]"


class Unreachable(Exception):
    """The server does not answer, or its connection broke."""


class NotListening(Unreachable):
    """Nothing listens at the server's address."""


class Untrusted(Unreachable):
    """No TLS connection: the certificate is not trusted, or one side does not speak TLS."""


class HttpRefusal(Exception):
    """The server answered with an error. `str` has its own message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}" if message else f"status {status}")
        self.status = status


class ServerHttp:
    """One server. To be made on the event loop."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """`url`: with or without a path, under which the server's own paths begin."""
        self.url = url.rstrip("/")
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(
            # aiohttp's own context has the certificates of the time of its import
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context()),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def text(self, path: str) -> str:
        """The body that a GET returns. Raises Unreachable, HttpRefusal."""
        return (await self._read("GET", path, None)).decode("utf-8", "replace")

    async def json(self, path: str, body: Any = None, kind: Any = Any) -> Any:
        """The JSON of the type `kind` that a GET returns, or a POST of `body`. Raises Unreachable,
        HttpRefusal."""
        answer = await self._read("GET" if body is None else "POST", path, body)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise HttpRefusal(200, f"{path} returned something else: {error}") from error

    async def post(self, path: str, body: Any, limit_s: float = ASK_S) -> None:
        """Sends `body`, and drops the answer. Raises Unreachable, HttpRefusal."""
        await self._read("POST", path, body, limit_s)

    async def events(
        self, path: str, body: Any, *, closes: bool = False, max_bytes: int = MAX_EVENT_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """Yields the data of each event that a POST of `body` returns, up to `[DONE]` or the end of
        the stream. Closing the generator closes the connection. `closes`: no other request uses it
        afterwards; `max_bytes`: of the longest event.

        Raises Unreachable, HttpRefusal; also where the answer is not a stream of events.
        """
        headers = {"Accept": "text/event-stream"}
        if closes:
            headers["Connection"] = "close"
        try:
            async with self._session.post(
                self.url + path,
                data=msgspec.json.encode(body),
                headers=headers,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    async with asyncio.timeout(ASK_S):
                        raise await _refusal(answer)
                if answer.content_type != "text/event-stream":
                    raise HttpRefusal(200, f"{path} returned {answer.content_type}, not a stream")
                lines = EventLines(max_bytes)
                async for piece in answer.content.iter_any():
                    for data in lines.feed(piece):
                        if data == _DONE:
                            return
                        yield data
        except (aiohttp.ClientError, ssl.SSLError, OSError, TimeoutError) as error:
            raise _unreachable(error) from error

    async def _read(self, method: str, path: str, body: Any, limit_s: float = ASK_S) -> bytes:
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=None if body is None else msgspec.json.encode(body),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_S),
            ) as answer:
                if answer.status != 200:
                    raise await _refusal(answer)
                return await _read_body(answer)
        except (aiohttp.ClientError, ssl.SSLError, OSError, TimeoutError) as error:
            raise _unreachable(error) from error


class EventLines:
    """Cuts a stream of bytes into the data of its events, each of one line. Pure."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of the longest line."""
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Returns the data of the lines that are complete. Raises HttpRefusal for a line without
        end."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._rest_bytes = [], 0
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > self._max_bytes:
            raise HttpRefusal(200, "an event of the stream has no end")
        return [line[len(_DATA) :].strip() for line in lines if line.startswith(_DATA)]


async def _read_body(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises HttpRefusal where it has no end."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise HttpRefusal(answer.status, "its answer has no end")
    return bytes(body)


async def _refusal(answer: aiohttp.ClientResponse) -> HttpRefusal:
    """The error that an answer is."""
    body = await _read_body(answer)
    to = answer.headers.get("Location")
    return HttpRefusal(answer.status, _message(body) if to is None else f"it redirects to {to}")


def _message(body: bytes) -> str:
    """The message of an error in one of the forms that servers use, or the beginning of the
    body."""
    text = body.decode("utf-8", "replace")
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        found = text
    while isinstance(found, dict):
        found = found.get("error") or found.get("message") or found.get("detail") or text
    return " ".join(str(found).split())[:MAX_MESSAGE_CHARS]


def _connection_failure(error: aiohttp.ClientConnectorError) -> str:
    """Returns why there is no connection, in words of the operating system."""
    cause = error.os_error
    reason = cause.strerror or str(cause)
    if cause.errno is not None and cause.errno > 0:
        reason = os.strerror(cause.errno)
    return f"cannot connect to {error.host}:{error.port}: {reason}"


def _unreachable(error: Exception) -> Unreachable:
    if isinstance(error, TimeoutError):
        return Unreachable("no answer in time")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", error.certificate_error)
        text = f"certificate verify failed: {reason}"
        return Untrusted(f"{text} (SSL_CERT_FILE names other certificates to trust)")
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        reason = getattr(error.os_error, "reason", None) or str(error.os_error)
        return Untrusted(
            f"no TLS connection ({reason.lower().replace('_', ' ')}); is it an https server?"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return NotListening(_connection_failure(error))
    return Unreachable(str(error) or type(error).__name__)

"""Calls the operator's provider of web search and fetch over a small HTTP contract
(`docs/hosted-tools.md`)."""

from typing import Any

import aiohttp
import msgspec
from msgspec import Struct
from typing_extensions import override

from schemas.conversation import HostedTool
from schemas.events import WebSource
from services.frontend.hosted.contract import (
    ERRORS,
    NoProvider,
    Provider,
    ProviderError,
    argument_name,
)
from services.frontend.http.bodies import read_until
from services.runtime.config.base import MIB, read_key
from services.runtime.config.frontend import FrontendConfig

MAX_ANSWER_BYTES = 8 * MIB
"""Limit of one answer of a provider."""
_BY_STATUS = {404: "url_not_accessible", 413: "content_too_large", 415: "unsupported_content_type"}
_TOO_MANY = 429
_OK = 200


class _ProviderAnswer(Struct):
    results: list[WebSource] | None = None
    error: str | None = None


_answer = msgspec.json.Decoder(_ProviderAnswer)


class HttpProvider(Provider):
    """Sends one POST for each call to the operator's URL."""

    def __init__(self, url: str, key_file: str | None, max_bytes: int) -> None:
        self._url = url
        self._key_file = key_file
        self._max_bytes = max_bytes
        self._client: aiohttp.ClientSession | None = None

    @override
    async def run(self, tool: HostedTool, argument: str) -> list[WebSource]:
        status, body = await self._post(tool, argument)
        answer = _decode_answer(body, status)
        if answer.error is None and status == _OK and answer.results is not None:
            return answer.results
        code = answer.error
        if code not in ERRORS:
            code = _error_code(tool, status)
        raise ProviderError(code, f"status {status}")

    @override
    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _post(self, tool: HostedTool, argument: str) -> tuple[int, bytes]:
        """Returns the status and the body of an answer. Raises ProviderError."""
        if self._client is None:
            self._client = aiohttp.ClientSession(
                # a cookie that is set for one tenant's call must not be sent with another's
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        headers = {"content-type": "application/json"}
        if self._key_file is not None:
            headers["authorization"] = f"Bearer {read_key(self._key_file)}"
        data = msgspec.json.encode(call_members(tool, argument))
        try:
            async with self._client.post(
                self._url, data=data, headers=headers, allow_redirects=False
            ) as response:
                body = await read_until(response.content, self._max_bytes)
        except aiohttp.ClientError as error:
            raise ProviderError("unavailable", f"{type(error).__name__}: {error}") from error
        if len(body) > self._max_bytes:
            raise ProviderError("content_too_large", f"more than {self._max_bytes} bytes")
        return response.status, body


def _decode_answer(body: bytes, status: int) -> _ProviderAnswer:
    """Returns an answer of the contract; an empty one for an error in another form."""
    try:
        return _answer.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        if status == _OK:
            raise ProviderError("unavailable", f"not an answer of the contract: {error}") from error
        return _ProviderAnswer()


def _error_code(tool: HostedTool, status: int) -> str:
    if status == _TOO_MANY:
        return "too_many_requests"
    if tool.kind == "web_fetch":
        return _BY_STATUS.get(status, "unavailable")
    return "unavailable"


def provider_of(config: FrontendConfig) -> Provider:
    """Makes the configured provider. Raises ValueError if its package is missing."""
    url = config.web_provider
    if url is None:
        return NoProvider()
    key_file = config.web_provider_key_file
    if config.web_provider_protocol == "http":
        return HttpProvider(url, key_file, MAX_ANSWER_BYTES)
    try:
        from services.frontend.hosted.mcp_provider import McpProvider
    except ImportError as error:
        raise ValueError(
            f"web_provider_protocol mcp needs the packages of turnwire[mcp]: {error}"
        ) from error
    tools = {"web_search": config.web_search_tool, "web_fetch": config.web_fetch_tool}
    return McpProvider(url, key_file, tools)


def call_members(tool: HostedTool, argument: str) -> dict[str, Any]:
    """Returns a call in the contract's form."""
    members: dict[str, Any] = {"tool": tool.kind, argument_name(tool): argument}
    if tool.allowed_domains:
        members["allowed_domains"] = tool.allowed_domains
    if tool.blocked_domains:
        members["blocked_domains"] = tool.blocked_domains
    if tool.location:
        members["user_location"] = tool.location
    return members

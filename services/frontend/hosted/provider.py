"""Calls the operator's provider of web search and fetch over a small HTTP contract
(`docs/hosted-tools.md`)."""

from typing import Any

import aiohttp
import msgspec
from msgspec import Struct
from typing_extensions import override

from schemas.conversation import HostedTool
from schemas.events import WebSource
from services.frontend.hosted.contract import ERRORS, Provider, ProviderError
from services.runtime.config import FrontendConfig, read_secret

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Limit of one answer of a provider."""
_BY_STATUS = {404: "url_not_accessible", 413: "content_too_large", 415: "unsupported_content_type"}
_TOO_MANY = 429
_OK = 200


class _Answer(Struct):
    results: list[WebSource] | None = None
    error: str | None = None


_answer = msgspec.json.Decoder(_Answer)


class HttpProvider(Provider):
    """Sends one POST for each call to the operator's URL."""

    def __init__(self, url: str, key_file: str | None, max_bytes: int) -> None:
        self._url = url
        self._key_file = key_file
        self._max_bytes = max_bytes
        self._client: aiohttp.ClientSession | None = None

    @override
    async def run(self, tool: HostedTool, argument: str) -> list[WebSource]:
        if self._client is None:
            self._client = aiohttp.ClientSession()
        headers = {"content-type": "application/json"}
        if self._key_file is not None:
            headers["authorization"] = f"Bearer {read_secret(self._key_file)}"
        data = msgspec.json.encode(call_members(tool, argument))
        try:
            async with self._client.post(
                self._url, data=data, headers=headers, allow_redirects=False
            ) as response:
                body = await self._read(response)
                status = response.status
        except aiohttp.ClientError as error:
            raise ProviderError("unavailable", f"{type(error).__name__}: {error}") from error
        try:
            answer = _answer.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            if status == _OK:
                raise ProviderError(
                    "unavailable", f"not an answer of the contract: {error}"
                ) from error
            answer = _Answer()
        if answer.error is None and status == _OK and answer.results is not None:
            return answer.results
        codes = _BY_STATUS if tool.kind == "web_fetch" else {}
        code = "too_many_requests" if status == _TOO_MANY else codes.get(status, "unavailable")
        raise ProviderError(answer.error if answer.error in ERRORS else code, f"status {status}")

    @override
    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(65536):
            body += chunk
            if len(body) > self._max_bytes:
                raise ProviderError("content_too_large", f"more than {self._max_bytes} bytes")
        return bytes(body)


def provider_of(config: FrontendConfig) -> Provider:
    """Makes the configured provider. Raises ValueError if its package is missing."""
    url, key_file = config.web_provider or "", config.web_provider_key_file
    if config.web_provider_protocol == "http":
        return HttpProvider(url, key_file, MAX_ANSWER_BYTES)
    try:
        from services.frontend.hosted.mcp_provider import McpProvider
    except ImportError as error:
        raise ValueError(
            f"web_provider_protocol mcp needs the packages of turnwire[mcp]: {error}"
        ) from error
    return McpProvider(
        url, key_file, {"web_search": config.web_search_tool, "web_fetch": config.web_fetch_tool}
    )


def call_members(tool: HostedTool, argument: str) -> dict[str, Any]:
    """Returns a call in the contract's form."""
    members: dict[str, Any] = {
        "tool": tool.kind,
        "query" if tool.kind == "web_search" else "url": argument,
    }
    if tool.allowed_domains:
        members["allowed_domains"] = tool.allowed_domains
    if tool.blocked_domains:
        members["blocked_domains"] = tool.blocked_domains
    if tool.location:
        members["user_location"] = tool.location
    return members

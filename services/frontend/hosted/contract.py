"""Defines the interface of a provider of web search and fetch."""

from abc import ABC, abstractmethod
from typing import Final

from typing_extensions import override

from schemas.conversation import HostedTool
from schemas.events import WebSource

ERRORS: Final = frozenset(
    {
        "invalid_tool_input",
        "unavailable",
        "max_uses_exceeded",
        "too_many_requests",
        "query_too_long",
        "request_too_large",
        "url_too_long",
        "url_not_allowed",
        "url_not_in_prior_context",
        "url_not_accessible",
        "unsupported_content_type",
        "content_too_large",
    }
)
"""The error codes of Anthropic's web search and fetch."""


class ProviderError(Exception):
    """A call failed. `code` is one of `ERRORS`."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def argument_name(tool: HostedTool) -> str:
    """Returns the name of the argument of a call, for every provider."""
    return "query" if tool.kind == "web_search" else "url"


class Provider(ABC):
    """Runs calls of hosted tools."""

    @abstractmethod
    async def run(self, tool: HostedTool, argument: str) -> list[WebSource]:
        """Returns the pages that a search found, or the page at a URL. Raises ProviderError, and
        OSError."""

    @abstractmethod
    async def close(self) -> None:
        """Closes its connections."""


class NoProvider(Provider):
    """The provider of a server that runs no web tools."""

    @override
    async def run(self, tool: HostedTool, argument: str) -> list[WebSource]:
        raise ProviderError("unavailable", "no provider is configured")

    @override
    async def close(self) -> None:
        pass

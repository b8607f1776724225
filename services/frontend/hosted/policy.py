"""Decides which calls of hosted tools may run, and which of their results may be shown. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from schemas.conversation import Conversation, HostedTool, Result, Text
from schemas.events import WebSource
from services.frontend.content.hosted_tools import refused_search
from services.frontend.content.urls import MAX_URL_CHARS, host_of, is_public, path_of

MAX_QUERY_CHARS = 1000


def refusal_code(
    tool: HostedTool, argument: str, conversation: Conversation, *, allow_private: bool
) -> str | None:
    """Returns the error code of a call that may not run; None if it may."""
    if tool.searches_tools:
        return refused_search(tool.kind, argument)
    if not argument:
        return "invalid_tool_input"
    if tool.kind == "web_search":
        return "query_too_long" if len(argument) > MAX_QUERY_CHARS else None
    return _refused_fetch(tool, argument, conversation, allow_private=allow_private)


def _refused_fetch(
    tool: HostedTool, url: str, conversation: Conversation, *, allow_private: bool
) -> str | None:
    """Returns the error code of a fetch that may not run; None if it may.

    A page can be fetched only if its URL was in the conversation, so that one page cannot make the
    model send data to another. Literal private addresses and local names are refused. The provider
    must check what names resolve to.
    """
    if len(url) > MAX_URL_CHARS:
        return "url_too_long"
    host = host_of(url)
    if host is None:
        return "invalid_tool_input"
    if not is_permitted(tool, url) or not (allow_private or is_public(host)):
        return "url_not_allowed"
    if not any(url in text for text in _texts(conversation)):
        return "url_not_in_prior_context"
    return None


def is_permitted(tool: HostedTool, url: str) -> bool:
    """Returns whether the client's lists of domains allow a URL. An entry covers subdomains and may
    end in a path."""
    if tool.allowed_domains and not _is_listed(url, tool.allowed_domains):
        return False
    return not _is_listed(url, tool.blocked_domains)


def permitted_sources(
    tool: HostedTool, sources: Iterable[WebSource], max_chars: int
) -> list[WebSource]:
    """Returns the sources that the client's lists of domains allow, with at most `max_chars`
    characters in all."""
    permitted: list[WebSource] = []
    chars_left = max_chars
    if tool.max_chars is not None:
        chars_left = min(max_chars, tool.max_chars)
    for page in sources:
        if not is_permitted(tool, page.url):
            continue
        url = page.url[:MAX_URL_CHARS]
        title = page.title[:MAX_QUERY_CHARS]
        chars_left -= len(url) + len(title)
        if chars_left < 0:
            break
        text = page.text[:chars_left]
        chars_left -= len(text)
        permitted.append(replace(page, url=url, title=title, text=text))
    return permitted


def _is_listed(url: str, domains: Sequence[str]) -> bool:
    host = host_of(url) or ""
    path = path_of(url).lower()
    return any(_covers(entry.lower(), host, path) for entry in domains)


def _covers(entry: str, host: str, path: str) -> bool:
    """Returns whether an entry of a list covers a URL with this host and path."""
    domain_and_path = entry.removeprefix("https://").removeprefix("http://")
    domain, slash, rest = domain_and_path.partition("/")
    if host != domain and not host.endswith("." + domain):
        return False
    return not slash or path.startswith("/" + rest)


def _texts(conversation: Conversation) -> Iterator[str]:
    """Yields the texts that the model did not write."""
    yield from (part.text for part in conversation.system)
    for message in conversation.messages:
        for part in message.parts:
            if isinstance(part, Result):
                yield from (inner.text for inner in part.parts if isinstance(inner, Text))
            elif isinstance(part, Text) and message.role != "assistant":
                yield part.text

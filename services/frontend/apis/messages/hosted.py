"""Converts the tools that this server runs (web search and fetch, searches of tools), their calls
and results to and from the blocks of this API."""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import HostedKind, HostedTool, ToolSpec
from schemas.errors import Invalid
from schemas.events import HostedResult, WebSource
from services.frontend.apis.messages import wire, wire_answers
from services.frontend.content.hosted_tools import hosted_spec, pack, unpack

TOOL_SEARCH = "tool_search"
"""The searches of tools, among the kinds of hosted tools that are served."""
_CHARS_PER_TOKEN = 4
_PREFIX = "srv"
"""Ids of hosted calls begin with `srvtoolu_` in the native API, ids of other calls with
`toolu_`."""


DIRECT = {"type": "direct"}
"""`caller` of every call: the model made it, not a program that the model wrote."""


class _Page(Struct):
    url: str = ""
    title: str | None = None
    encrypted_content: str | None = None
    page_age: str | None = None


class _Source(Struct):
    data: str = ""


class _Document(Struct):
    source: _Source = msgspec.field(default_factory=_Source)
    title: str | None = None


class _Fetched(Struct):
    url: str = ""
    content: _Document = msgspec.field(default_factory=_Document)
    error_code: str | None = None


class _FoundTools(Struct):
    tool_references: list[wire.ToolReferenceBlock] = []
    error_code: str | None = None


_content = msgspec.json.Decoder(list[_Page] | _Fetched)
_found_tools = msgspec.json.Decoder(_FoundTools)
_SEARCHES: dict[str, HostedKind] = {
    "tool_search_tool_regex": "tool_search_regex",
    "tool_search_tool_bm25": "tool_search_bm25",
}
"""The searches of tools by their types, which may also have a date."""
_WEB_TOOLS: tuple[HostedKind, ...] = ("web_search", "web_fetch")


def tool_spec(tool: wire.MessagesTool, served: frozenset[str], field_path: str) -> ToolSpec | None:
    """The tool as the model sees it; None for one that is not served. Raises Invalid."""
    type_name = tool.type or ""
    if TOOL_SEARCH in served:
        for name, search in _SEARCHES.items():
            if type_name.startswith(name):
                return hosted_spec(HostedTool(search, deferred=True), tool.name or name)
    for kind in _WEB_TOOLS:
        if kind in served and type_name.startswith(f"{kind}_"):
            return hosted_spec(_web_tool(tool, kind, field_path), tool.name)
    return None


def _web_tool(tool: wire.MessagesTool, kind: HostedKind, field_path: str) -> HostedTool:
    """A tool of the web with the limits of the request. Raises Invalid."""
    if tool.allowed_domains and tool.blocked_domains:
        raise Invalid(
            f"{field_path}: Only one of `allowed_domains` and `blocked_domains` may be given.",
            param=field_path,
        )
    if tool.url_sources is not None:
        raise Invalid(
            f"{field_path}.url_sources: not supported by this server",
            param=f"{field_path}.url_sources",
        )
    max_chars = None
    if tool.max_content_tokens is not None:
        max_chars = tool.max_content_tokens * _CHARS_PER_TOKEN
    return HostedTool(
        kind,
        max_uses=tool.max_uses,
        allowed_domains=tool.allowed_domains or [],
        blocked_domains=tool.blocked_domains or [],
        location=tool.user_location or {},
        max_chars=max_chars,
        deferred=True,
    )


def hosted_id(call_id: str) -> str:
    """The id of a call in this API."""
    return _PREFIX + call_id


def plain_id(id: str) -> str:
    """Reverses `hosted_id`."""
    return id.removeprefix(_PREFIX)


def result_block(result: HostedResult) -> wire_answers.HostedContent:
    """The content block of a result."""
    if result.is_of_tool_search:
        return wire_answers.ToolSearchContent(hosted_id(result.call_id), _tools_content(result))
    content: Any
    if result.error is not None:
        content = {"type": f"{result.kind}_tool_result_error", "error_code": result.error}
    elif result.kind == "web_search":
        content = list(map(_page_content, result.sources))
    else:
        (page,) = result.sources
        content = _document_content(page)
    id = hosted_id(result.call_id)
    if result.kind == "web_search":
        return wire_answers.WebSearchContent(id, DIRECT, content)
    return wire_answers.WebFetchContent(id, DIRECT, content)


def _tools_content(result: HostedResult) -> dict[str, Any]:
    if result.error is not None:
        return {
            "type": "tool_search_tool_result_error",
            "error_code": result.error,
            "error_message": result.explanation,
        }
    references = [{"type": "tool_reference", "tool_name": name} for name in result.tools]
    return {"type": "tool_search_tool_search_result", "tool_references": references}


def _page_content(page: WebSource) -> dict[str, Any]:
    return {
        "type": "web_search_result",
        "url": page.url,
        "title": page.title,
        "encrypted_content": pack(page.text.encode()),
        "page_age": page.age,
    }


def _document_content(page: WebSource) -> dict[str, Any]:
    text = {"type": "text", "media_type": "text/plain", "data": page.text}
    document = {"type": "document", "source": text, "title": page.title or None}
    return {
        "type": "web_fetch_result",
        "url": page.url,
        "content": document,
        "retrieved_at": None,
    }


def result_of(block: wire.ServedResultBlock, name: str, field_path: str) -> HostedResult:
    """The result in a block that a client returns, without text that another server encrypted.
    Raises Invalid."""
    try:
        return _read_result(block, name)
    except (msgspec.ValidationError, RecursionError):
        raise Invalid(
            f"{field_path}.content: Input should be a valid result or error",
            param=f"{field_path}.content",
        ) from None


def _read_result(block: wire.ServedResultBlock, name: str) -> HostedResult:
    call_id = plain_id(block.tool_use_id)
    if isinstance(block, wire.ToolSearchResultBlock):
        search = _found_tools.decode(block.content)
        names = [reference.tool_name for reference in search.tool_references]
        kind = _SEARCHES.get(name, "tool_search_bm25")
        return HostedResult(call_id, name, kind, "", tools=names, error=search.error_code)

    content = _content.decode(block.content)
    is_search = isinstance(block, wire.WebSearchResultBlock)
    result = HostedResult(call_id, name, "web_search" if is_search else "web_fetch", "")
    if isinstance(content, list):
        return replace(result, sources=list(map(_page_source, content)))
    if content.error_code:
        return replace(result, sources=[], error=content.error_code)
    document = content.content
    page = WebSource(content.url, document.title or "", document.source.data)
    return replace(result, sources=[page], error=content.error_code)


def _page_source(page: _Page) -> WebSource:
    text = (unpack(page.encrypted_content) or b"").decode("utf-8", "replace")
    return WebSource(page.url, page.title or "", text, page.page_age)

"""Web search in this API's form: the tool, its items, and the item that carries results to the next request.

A `web_search_call` has no results, and agents keep nothing but its own members. What every agent returns unchanged is
the `encrypted_content` of reasoning: behind the calls of a turn a reasoning item without text carries their results.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.conversation import HostedTool, ToolSpec
from schemas.events import HostedResult
from services.frontend.apis.common.hosted import hosted_argument, hosted_spec, pack, unpack
from services.frontend.apis.responses import wire

WEB_SEARCH = "web_search"
WEB_SEARCH_TYPES = frozenset(
    {WEB_SEARCH, "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"}
)
SOURCES = "web_search_call.action.sources"
_results = msgspec.json.Decoder(list[HostedResult])
_encode = msgspec.json.Encoder().encode


def search_specs(tool: wire.Tool, served: frozenset[str]) -> list[ToolSpec]:
    """The tool as the model sees it: a search and, where it is served, a fetch for its action `open_page`. Empty where
    it is not served, or where the client wants cached pages only, which no provider has."""
    if WEB_SEARCH not in served or tool.external_web_access is False:
        return []
    filters = tool.filters or wire.SearchFilters()
    return [
        hosted_spec(
            HostedTool(
                kind,  # type: ignore[arg-type]
                allowed_domains=filters.allowed_domains or [],
                blocked_domains=filters.blocked_domains or [],
                location=tool.user_location or {},
            )
        )
        for kind in (WEB_SEARCH, "web_fetch")
        if kind in served
    ]


def call_item(id: str, kind: str, arguments: str, status: str, sources: Sequence[str] | None = None) -> Raw:
    """A `web_search_call` item. `kind`: of the hosted tool."""
    argument = hosted_argument(kind, arguments)
    action: dict[str, Any] = {"type": "open_page", "url": argument}
    if kind == WEB_SEARCH:
        action = {"type": "search", "query": argument, "queries": [argument]}
        if sources is not None:
            action["sources"] = [{"type": "url", "url": url} for url in sources]
    return Raw(_encode({"id": id, "type": "web_search_call", "status": status, "action": action}))


def results_item(id: str, results: Sequence[HostedResult]) -> Raw:
    """The item that carries results."""
    return Raw(_encode({"id": id, "type": "reasoning", "summary": [], "encrypted_content": pack(_encode(results))}))


def carried_results(blob: str | None) -> list[HostedResult] | None:
    """The results in the `encrypted_content` of such an item; None for any other."""
    data = unpack(blob)
    if data is None:
        return None
    try:
        return _results.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return []

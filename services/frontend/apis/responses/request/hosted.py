"""Web search in requests: the tool, and the results that clients send back (`answer.searches`)."""

import msgspec

from schemas.conversation import HostedTool, ToolSpec
from schemas.events import HostedResult
from services.frontend.apis.common.hosted import hosted_spec, unpack
from services.frontend.apis.responses import wire

WEB_SEARCH = "web_search"
WEB_SEARCH_TYPES = frozenset(
    {WEB_SEARCH, "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"}
)
SOURCES = "web_search_call.action.sources"
_results = msgspec.json.Decoder(list[HostedResult])


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


def carried_results(blob: str | None) -> list[HostedResult] | None:
    """The results in the `encrypted_content` of reasoning; None where it is something else."""
    data = unpack(blob)
    if data is None:
        return None
    try:
        return _results.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return []

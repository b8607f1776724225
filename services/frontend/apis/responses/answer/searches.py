"""Web searches that this server runs: their items, and the item that carries results to the next request.

A `web_search_call` has no results, and agents keep nothing but its own members. What every agent returns unchanged is
the `encrypted_content` of reasoning: behind the calls of a turn a reasoning item without text carries their results.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.events import BlockStart, BlockStop, HostedResult
from services.frontend.apis.common.hosted import hosted_argument, pack
from services.frontend.apis.responses.answer.events import EventWriter
from services.frontend.apis.responses.answer.items import OutputItem, raw


class SearchItem(OutputItem):
    """A call of web search or web fetch. At the end of its block the search begins."""

    def __init__(self, writer: EventWriter, turn: str, index: int, start: BlockStart) -> None:
        super().__init__(writer, f"ws_{turn}{index:03d}", index)
        self.call_id = start.call_id or ""
        self._kind = start.name or ""

    def final(self, stop: BlockStop) -> Raw | None:
        """See `OutputItem.final`."""
        return self.json("in_progress") if stop.complete else None

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        self.writer.item("added", self.index, item)
        self._event("web_search_call.in_progress", {})
        self._event("web_search_call.searching", {})
        return False

    def found(self, result: HostedResult, *, with_sources: bool) -> Raw:
        """Ends the search, and returns the item."""
        sources = [source.url for source in result.sources] if with_sources else None
        item = self.json("failed" if result.error else "completed", sources)
        self._event("web_search_call.completed", {})
        self.writer.item("done", self.index, item)
        return item

    def json(self, status: str, sources: Sequence[str] | None = None) -> Raw:
        """The item in some state."""
        argument = hosted_argument(self._kind, self.text)
        action: dict[str, Any] = {"type": "open_page", "url": argument}
        if self._kind == "web_search":
            action = {"type": "search", "query": argument, "queries": [argument]}
            if sources is not None:
                action["sources"] = [{"type": "url", "url": url} for url in sources]
        return raw({"id": self.id, "type": "web_search_call", "status": status, "action": action})


def results_item(id: str, results: Sequence[HostedResult]) -> Raw:
    """The item that carries results; `request.hosted.carried_results` reads it."""
    return raw({"id": id, "type": "reasoning", "summary": [], "encrypted_content": pack(msgspec.json.encode(results))})

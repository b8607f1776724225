"""Renders the output items of searches and fetches that this server runs."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw
from typing_extensions import override

from schemas.events import BlockStart, BlockStop, HostedResult
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.render.items.open_item import ItemPlace, OpenItem, encode_item
from services.frontend.content.hosted_tools import hosted_argument, pack


class OpenSearch(OpenItem):
    """A call of web search or web fetch. The search begins at the end of its block, and ends when
    its result is there."""

    def __init__(self, place: ItemPlace, start: BlockStart) -> None:
        super().__init__("ws", place)
        self.call_id = start.call_id or ""
        self._kind = start.name or ""
        self._with_sources = place.shape.sources

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw | None:
        if not stop.complete:
            return None
        item = self._item("in_progress")
        out.append(self._added(item))
        out.append(wire_events.WebSearchInProgress(item_id=self.id, output_index=self.index))
        out.append(wire_events.WebSearchSearching(item_id=self.id, output_index=self.index))
        return encode_item(item)

    def finish(self, result: HostedResult, out: wire_events.Events) -> Raw:
        """Ends the search, and returns its item."""
        finished = self._item("failed" if result.error else "completed")
        if self._with_sources and isinstance(finished.action, wire_answers.SearchAction):
            finished.action.sources = [
                wire_answers.SearchSource(source.url) for source in result.sources
            ]
        out.append(wire_events.WebSearchCompleted(item_id=self.id, output_index=self.index))
        return self._done(finished, out)

    def fail(self) -> Raw:
        """The item of a search that will have no result."""
        return encode_item(self._item("failed"))

    def _item(self, status: wire_answers.ItemStatus) -> wire_answers.OutputWebSearchCall:
        return wire_answers.OutputWebSearchCall(id=self.id, status=status, action=self._action())

    def _action(self) -> wire_answers.SearchAction | wire_answers.OpenPageAction:
        argument = hosted_argument(self._kind, self.text)
        if self._kind == "web_search":
            return wire_answers.SearchAction(argument, [argument])
        return wire_answers.OpenPageAction(argument)


class Searches:
    """The searches of a turn, until they have results."""

    def __init__(self) -> None:
        self._open: dict[str, OpenSearch] = {}
        """Searches without results, by call id."""
        self.titles: dict[str, str] = {}
        """Titles of pages that searches found, by URL."""

    def add(self, search: OpenSearch) -> None:
        """Adds a search that begins."""
        self._open[search.call_id] = search

    def finish(
        self, results: Sequence[HostedResult], items: list[Raw], out: wire_events.Events
    ) -> list[HostedResult]:
        """Ends the searches that have results, in `items` too. Returns their results."""
        expected = [result for result in results if result.call_id in self._open]
        for result in expected:
            search = self._open.pop(result.call_id)
            self.titles |= {source.url: source.title for source in result.sources}
            items[search.index] = search.finish(result, out)
        return expected

    def fail(self, items: list[Raw]) -> None:
        """Ends the searches that will have no results, in `items`."""
        for search in self._open.values():
            items[search.index] = search.fail()
        self._open.clear()


def results_item(place: ItemPlace, results: Sequence[HostedResult]) -> wire_answers.OutputReasoning:
    """The item that carries results to the next request, in the `encrypted_content` of reasoning,
    which every agent returns unchanged. A `web_search_call` has no member for results, and agents
    drop members that they do not know."""
    return wire_answers.OutputReasoning(
        id=place.item_id("rs"),
        summary=[],
        encrypted_content=pack(msgspec.json.encode(results)),
    )

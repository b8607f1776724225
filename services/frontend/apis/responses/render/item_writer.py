"""Writes the output items of a Response: one for each block of its turns, and one for results of
hosted tools."""

from msgspec.structs import replace

from schemas.events import BlockStart, BlockStop, HostedResult, HostedResults, TokenLogprob
from services.frontend.apis.responses import wire_events
from services.frontend.apis.responses.parse.tools.specs import SEARCH_KIND, TOOL_SEARCH
from services.frontend.apis.responses.render.document import ResponseState
from services.frontend.apis.responses.render.items.calls import open_call
from services.frontend.apis.responses.render.items.message import OpenMessage
from services.frontend.apis.responses.render.items.open_item import (
    CUT_OFF,
    NO_ITEM,
    ItemPlace,
    OpenItem,
    encode_item,
)
from services.frontend.apis.responses.render.items.reasoning import OpenReasoning
from services.frontend.apis.responses.render.items.searches import (
    OpenSearch,
    Searches,
    results_item,
)
from services.frontend.apis.responses.render.items.tool_searches import (
    OpenToolSearch,
    search_output,
)


class ItemWriter:
    """Writes the items of one Response. Each method appends its events to `out`, and finished items
    to the Response.

    The end of a message is delayed until the next event shows whether the turn was cut off in the
    message.
    """

    def __init__(self, state: ResponseState) -> None:
        self.item: OpenItem = NO_ITEM
        """The item of the open block, or the message with a pending end."""
        self._state = state
        self._turn = state.answer.turn
        """The id of the current turn. Each round of hosted tools is a turn."""
        self._pending_stop: BlockStop | None = None
        """The end of a message, pending until the next event."""
        self._searches = Searches()

    def begin(self, start: BlockStart, out: wire_events.Events) -> None:
        """Begins the item of a block."""
        self._close_message(out)
        self.item = self._open_item(start)
        self.item.begin(out)

    def add(self, text: str, tokens: list[TokenLogprob], out: wire_events.Events) -> None:
        """Adds text of the open block. `tokens`: as in `Delta.logprobs`."""
        self.item.add(text, tokens, out)

    def stop(self, stop: BlockStop, out: wire_events.Events) -> None:
        """Ends the open block."""
        if isinstance(self.item, OpenMessage):
            self._pending_stop = stop
        else:
            self._close(stop, out)

    def add_results(self, event: HostedResults, out: wire_events.Events) -> None:
        """Ends the searches of the web that have results, and adds the item that carries the
        results; then adds the tools that were found."""
        carried = self._searches.finish(event.results, self._state.items, out)
        if carried:
            item = results_item(self._next_place(), carried)
            out += self._state.add_item(encode_item(item))
        for result in event.results:
            if result.kind == SEARCH_KIND:
                out += self._found_tools(result)
        self._turn = event.turn

    def end(self, out: wire_events.Events, *, cut: bool) -> None:
        """Ends the last item of a turn. `cut`: a limit ended the turn early."""
        stop = self._pending_stop
        if cut or stop is None:
            stop = CUT_OFF
        self._close(stop, out)

    def break_off(self, out: wire_events.Events) -> None:
        """Ends the output of a turn without an end. An open item gets no end in the stream, because
        agents that retry keep the items that have one; it is incomplete in the Response."""
        self._close_message(out)
        self._searches.fail(self._state.items)
        half = self.item.cut_off()
        self.item = NO_ITEM
        if half is not None:
            self._state.items.append(encode_item(half))

    def _open_item(self, start: BlockStart) -> OpenItem:
        place = self._next_place()
        match start.kind:
            case "text":
                return OpenMessage(place, self._searches.titles)
            case "reasoning":
                return OpenReasoning(place)
            case "hosted":
                return _open_hosted(place, start)
            case "tool_use":
                return open_call(place, start)

    def _next_place(self) -> ItemPlace:
        state = self._state
        return ItemPlace(state.answer, state.shape, self._turn, len(state.items))

    def _close(self, stop: BlockStop, out: wire_events.Events) -> None:
        item = self.item
        self.item = NO_ITEM
        self._pending_stop = None
        ended = item.end(stop, out)
        if ended is None:
            return
        self._state.items.append(ended)
        if isinstance(item, OpenSearch):
            self._searches.add(item)

    def _close_message(self, out: wire_events.Events) -> None:
        """Writes the pending end of a message."""
        if self._pending_stop is not None:
            self._close(self._pending_stop, out)

    def _found_tools(self, result: HostedResult) -> wire_events.Events:
        """Adds the item of a search of tools, and returns its events."""
        item = search_output(self._next_place(), result)
        opening = replace(item, status="in_progress")
        return self._state.add_item(encode_item(item), encode_item(opening))


def _open_hosted(place: ItemPlace, start: BlockStart) -> OpenItem:
    name = place.shape.names.get(start.name or "")
    if name is not None and name.kind == TOOL_SEARCH:
        return OpenToolSearch(place)
    return OpenSearch(place, start)

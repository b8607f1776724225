"""Renders a turn as the event stream of the Responses API, or as one document.

    start                                   response.created, response.in_progress
    Delta "Let me look."                    output_item.added reasoning, content_part.added,
                                            reasoning_text.delta
    BlockStop seal=…                        reasoning_text.done, content_part.done,
                                            output_item.done
    BlockStart tool_use name=exec_command   output_item.added function_call
    Delta '{"cmd": "l'                      function_call_arguments.delta
    BlockStop complete                      function_call_arguments.done, output_item.done
                                            [, tool_call_dispatch]
    Finish                                  response.completed, [DONE]

Codex and the SDK's tool runner start a tool at its `output_item.done`, while the stream continues.
The end of a message is delayed until the next event shows whether the turn was cut off in the
message.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.errors import ErrorInfo, ErrorKind, raised
from schemas.events import (
    BlockStart,
    BlockStop,
    Finish,
    HostedResult,
    HostedResults,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TurnEvent,
)
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.render.calls import open_call
from services.frontend.apis.responses.render.document import ResponseState, diagnostics
from services.frontend.apis.responses.render.events import EventEncoder
from services.frontend.apis.responses.render.items import (
    CUT_OFF,
    NO_ITEM,
    ItemPlace,
    OpenItem,
    ResponsesShape,
    encode_item,
)
from services.frontend.apis.responses.render.message import OpenMessage
from services.frontend.apis.responses.render.reasoning import OpenReasoning
from services.frontend.apis.responses.render.searches import (
    OpenSearch,
    Searches,
    results_item,
)
from services.frontend.apis.responses.render.tool_searches import OpenToolSearch, search_output
from services.frontend.apis.responses.request.compaction import TextSealer, seal_summary
from services.frontend.apis.responses.request.tool_specs import SEARCH_KIND, TOOL_SEARCH
from services.frontend.apis.shared.answer import TurnRenderer
from services.frontend.turns.compaction import summary_text
from services.frontend.turns.interfaces import AnswerInfo, Collector, Renderer

NO_SUMMARY = ErrorInfo(ErrorKind.ENGINE, "The model wrote no summary of the conversation.")


class ResponsesStream(TurnRenderer[wire_events.Event], Renderer):
    """Renders one turn."""

    def __init__(self, answer: AnswerInfo, shape: ResponsesShape) -> None:
        self.state = ResponseState(answer, shape)
        self._encoder = EventEncoder()
        self._turn = answer.turn
        """The id of the current turn. Each round of hosted tools is a turn."""
        self._item: OpenItem = NO_ITEM
        """The item of the open block, or the message with a pending end."""
        self._pending_stop: BlockStop | None = None
        """The end of a message, pending until the next event."""
        self._searches = Searches()

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`response.created` and `response.in_progress`, and the items that were made before the
        turn."""
        return self.encode(self.opening(prepared[0]))

    def opening(self, prepared: Prepared) -> list[wire_events.Event]:
        """The events of `start`."""
        shape = self.state.shape
        self.state.tokens.start(prepared)
        if shape.compared:
            self.state.diagnostics = diagnostics(prepared.comparison, compacted=shape.compacted)
        response = self.state.document()
        out: wire_events.Events = [
            wire_events.ResponseCreated(response=response),
            wire_events.ResponseInProgress(response=response),
        ]
        for item in shape.before:
            out += self.state.add_item(item)
        return out

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events. Deltas that came together are sent as one."""
        item = self._item
        if item.plain is not None:
            delta = self._encoder.encode_plain(events, item.plain, item.pieces)
            if delta:
                return delta
        return self.encode(self.render(events))

    @override
    def render(self, events: Sequence[TurnEvent]) -> list[wire_events.Event]:
        return [] if self.state.ended else super().render(events)

    @override
    def encode(self, events: Sequence[wire_events.Event]) -> bytes:
        return self._encoder.encode(events)

    def error(self, info: ErrorInfo) -> bytes:
        """`response.failed`, the last event."""
        out: wire_events.Events = []
        self._fail(info, out)
        return self.encode(out)

    def break_off(self) -> bytes:
        """Ends the output of a cancelled turn: writes the pending end of a message. An open item is
        incomplete in the Response."""
        out: wire_events.Events = []
        if not self.state.ended:
            self._break_off(out)
        return self.encode(out)

    def _start(self, event: BlockStart, out: wire_events.Events) -> None:
        self._close_message(out)
        self._item = self._open_item(event)
        self._item.begin(out)

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
        state = self.state
        return ItemPlace(state.answer, state.shape, self._turn, len(state.items))

    def _delta(self, text: str, tokens: list[TokenLogprob], out: wire_events.Events) -> None:
        self._item.add(text, tokens, out)

    def _stop(self, event: BlockStop, out: wire_events.Events) -> None:
        if isinstance(self._item, OpenMessage):
            self._pending_stop = event
        else:
            self._close(event, out)

    def _tokens(self, event: OutputTokens, out: wire_events.Events) -> None:
        self.state.tokens.add(event)

    def _close(self, stop: BlockStop, out: wire_events.Events) -> None:
        item = self._item
        self._item = NO_ITEM
        self._pending_stop = None
        ended = item.end(stop, out)
        if ended is None:
            return
        self.state.items.append(ended)
        if isinstance(item, OpenSearch):
            self._searches.add(item)

    def _close_message(self, out: wire_events.Events) -> None:
        """Writes the pending end of a message."""
        if self._pending_stop is not None:
            self._close(self._pending_stop, out)

    def _results(self, event: HostedResults, out: wire_events.Events) -> None:
        """Ends the searches of the web that have results, and adds the item that carries the
        results; then adds the tools that were found."""
        carried = self._searches.finish(event.results, self.state.items, out)
        if carried:
            item = results_item(self._next_place(), carried)
            out += self.state.add_item(encode_item(item))
        for result in event.results:
            if result.kind == SEARCH_KIND:
                out += self._found_tools(result)
        self._turn = event.turn

    def _found_tools(self, result: HostedResult) -> wire_events.Events:
        """Adds the item of a search of tools, and returns its events."""
        item = search_output(self._next_place(), result)
        begun = replace(item, status="in_progress")
        return self.state.add_item(encode_item(item), encode_item(begun))

    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        cut = self.state.cut_by(event)
        stop = self._pending_stop
        if cut or stop is None:
            stop = CUT_OFF
        self._close(stop, out)
        self.state.finish(event.usage, cut=cut)
        out.append(self.state.last_event())

    def _fail(self, info: ErrorInfo, out: wire_events.Events) -> None:
        if self.state.ended:
            return
        self._break_off(out)
        self.state.fail(info)
        out.append(self.state.last_event())

    def _break_off(self, out: wire_events.Events) -> None:
        self._close_message(out)
        self._searches.fail(self.state.items)
        # An open item gets no end: agents that retry keep the items that have one.
        half = self._item.cut_off()
        self._item = NO_ITEM
        if half is not None:
            self.state.items.append(encode_item(half))


def _open_hosted(place: ItemPlace, start: BlockStart) -> OpenItem:
    name = place.shape.names.get(start.name or "")
    if name is not None and name.kind == TOOL_SEARCH:
        return OpenToolSearch(place)
    return OpenSearch(place, start)


class SummaryStream(ResponsesStream):
    """Renders a compaction: one item with the model's summary, sealed. Codex treats any other item
    as a failure, so neither reasoning nor text is sent; before the item the stream has only
    keep-alive events."""

    def __init__(self, answer: AnswerInfo, shape: ResponsesShape, sealer: TextSealer) -> None:
        super().__init__(answer, shape)
        self._sealer = sealer
        self._events: list[TurnEvent] = []

    @override
    def render(self, events: Sequence[TurnEvent]) -> wire_events.Events:
        self._events += events
        return super().render(events)

    @override
    def _start(self, event: BlockStart, out: wire_events.Events) -> None:
        """Sends nothing."""

    @override
    def _delta(self, text: str, tokens: list[TokenLogprob], out: wire_events.Events) -> None:
        """Sends nothing."""

    @override
    def _stop(self, event: BlockStop, out: wire_events.Events) -> None:
        """Sends nothing."""

    @override
    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        summary = summary_text(self._events)
        if not summary:
            self._fail(NO_SUMMARY, out)
            return
        item = wire_answers.OutputCompaction(
            id=f"cmp_{self.state.answer.turn}000",
            encrypted_content=seal_summary(self._sealer, summary),
        )
        out += self.state.add_item(encode_item(item))
        self.state.finish(event.usage, cut=False)  # a summary is used even if it reached the limit
        out.append(self.state.last_event())


class ResponsesCollector(Collector):
    """Collects one turn into a document: the Response in the last event of its stream."""

    def __init__(self, stream: ResponsesStream, user_messages: Sequence[Raw] | None = None) -> None:
        """`user_messages`: set for POST /v1/responses/compact: the messages that its document
        repeats."""
        self.stream = stream
        self._user_messages = user_messages

    @override
    def start(self, prepared: Sequence[Prepared]) -> None:
        self.stream.opening(prepared[0])

    @override
    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        self.stream.events(events)

    @override
    def body(self) -> bytes:
        """Raises TurnwireError where a compaction has no summary."""
        state = self.stream.state
        if state.failure is not None:
            raise raised(state.failure)
        document = state.document()
        if self._user_messages is None or document.usage is None:
            return msgspec.json.encode(document)
        compaction = wire_answers.Compaction(
            id=document.id,
            created_at=document.created_at,
            output=[*self._user_messages, *document.output],
            usage=document.usage,
        )
        return msgspec.json.encode(compaction)

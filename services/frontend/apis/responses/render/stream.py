"""Renders a turn as the event stream of the Responses API, or as one document.

    start                                   response.created, response.in_progress
    Delta "Let me look."                    output_item.added reasoning, content_part.added, reasoning_text.delta
    BlockStop seal=…                        reasoning_text.done, content_part.done, output_item.done
    BlockStart tool_use name=exec_command   output_item.added function_call
    Delta '{"cmd": "l'                      function_call_arguments.delta
    BlockStop complete                      function_call_arguments.done, output_item.done [, tool_call_dispatch]
    Finish                                  response.completed, [DONE]

Codex and the SDK's tool runner start a tool at its `output_item.done`, while the stream continues.
The end of a message is delayed until the next event shows whether the turn was cut off in the
message.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw
from typing_extensions import override

from schemas.errors import ErrorInfo, ErrorKind, raised
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    HostedResults,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TurnEvent,
)
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.render.calls import (
    ID_PREFIXES,
    BuiltInItem,
    CustomItem,
    FunctionItem,
    SearchItem,
    results_item,
)
from services.frontend.apis.responses.render.document import ResponseState, diagnostics
from services.frontend.apis.responses.render.events import EventWriter
from services.frontend.apis.responses.render.items import (
    CUT_OFF,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponsesShape,
    url_citations,
)
from services.frontend.apis.responses.request.items import TextSealer, seal_summary
from services.frontend.apis.responses.request.tools import tool_name
from services.frontend.apis.shared.answer import TurnRenderer
from services.frontend.turns.interfaces import AnswerInfo, Collector, Renderer

NO_SUMMARY = ErrorInfo(ErrorKind.ENGINE, "The model wrote no summary of the conversation.")
_encode = msgspec.json.Encoder().encode


class ResponsesStream(TurnRenderer[None], Renderer):
    """Renders one turn. Events go to its writer instead of `out`."""

    def __init__(self, answer: AnswerInfo, shape: ResponsesShape) -> None:
        self.state = ResponseState(answer, shape)
        self._writer = EventWriter(answer)
        self._turn = answer.turn
        """The id of the current turn, part of the items' ids. Each round of hosted tools is a turn."""
        self._item: OutputItem | None = None
        """The item of the open block, or the message with a pending end."""
        self._pending_stop: BlockStop | None = None
        """The end of a message, pending until the next event."""
        self._searches: dict[str, SearchItem] = {}
        """Searches without results yet, by call id."""
        self._titles: dict[str, str] = {}
        """Titles of pages that searches found, by URL."""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`response.created` and `response.in_progress`, and the items that were made before the
        turn."""
        self.state.tokens.start(prepared[0])
        if (shape := self.state.shape).compared:
            self.state.diagnostics = diagnostics(prepared[0].comparison, compacted=shape.compacted)
        response = Raw(msgspec.json.encode(self.state.document()))
        self._writer.event("created", {"response": response})
        self._writer.event("in_progress", {"response": response})
        for item in self.state.shape.before:
            self._add_whole(item)
        return self._writer.take()

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events. Deltas that came together are sent as one."""
        item = self._item
        if (
            item is not None
            and item.plain
            and len(events) == 1
            and type(first := events[0]) is Delta
            and first.text
        ):
            # Does what `item.add` and `take` do, in half the time.
            item.pieces.append(first.text)
            writer = self._writer
            number = writer.number
            writer.number = number + 1
            return b'%b%d,"delta":%b%b' % (item.head, number, _encode(first.text), item.tail)
        return b"" if self.state.ended else super().events(events)

    @override
    def encode(self, events: Sequence[None]) -> bytes:
        return self._writer.take()

    def error(self, info: ErrorInfo) -> bytes:
        """`response.failed`, the last event."""
        self._fail(info, [])
        return self._writer.take()

    def break_off(self) -> bytes:
        """Ends the output of a cancelled turn: writes the pending end of a message. An open item is
        incomplete in the Response."""
        if not self.state.ended:
            self._break_off()
        return self._writer.take()

    def _start(self, event: BlockStart, out: list[None]) -> None:
        self._close_message()
        self._item = self._new_item(event)
        self._item.begin()

    def _delta(self, text: str, tokens: list[TokenLogprob], out: list[None]) -> None:
        if self._item is not None:
            self._item.add(text, tokens)

    def _stop(self, event: BlockStop, out: list[None]) -> None:
        if isinstance(self._item, MessageItem):
            self._pending_stop = event
        else:
            self._close(event)

    def _tokens(self, event: OutputTokens, out: list[None]) -> None:
        self.state.tokens.add(event)

    def _new_item(self, start: BlockStart) -> OutputItem:
        writer, turn, index, shape = (
            self._writer,
            self._turn,
            len(self.state.items),
            self.state.shape,
        )
        if start.kind == "text":
            return MessageItem(writer, turn, index, shape)
        if start.kind == "reasoning":
            return ReasoningItem(writer, turn, index, shape)
        if start.kind == "hosted":
            return SearchItem(writer, turn, index, start)
        name = tool_name(shape.names, start.name or "")
        kind = (
            BuiltInItem
            if name.kind in ID_PREFIXES
            else CustomItem
            if name.kind == "custom"
            else FunctionItem
        )
        return kind(writer, turn, index, name, start.call_id or f"call_{turn}{start.block}")

    def _close(self, stop: BlockStop) -> None:
        item, self._item, self._pending_stop = self._item, None, None
        if isinstance(item, MessageItem):
            item.annotations = url_citations(item.text, self._titles)
        ended = item.end(stop) if item is not None else None
        if ended is None:
            return
        self.state.items.append(ended)
        if isinstance(item, SearchItem):
            self._searches[item.call_id] = item

    def _close_message(self) -> None:
        """Writes the pending end of a message."""
        if self._pending_stop is not None:
            self._close(self._pending_stop)

    def _add_whole(self, item: Raw) -> None:
        index = len(self.state.items)
        self._writer.item("added", index, item)
        self._writer.item("done", index, item)
        self.state.items.append(item)

    def _results(self, event: HostedResults, out: list[None]) -> None:
        """Ends the searches that have results, and adds the item that carries the results."""
        carried = [result for result in event.results if result.call_id in self._searches]
        for result in carried:
            search = self._searches.pop(result.call_id)
            self._titles |= {source.url: source.title for source in result.sources}
            self.state.items[search.index] = search.finish(
                result, with_sources=self.state.shape.sources
            )
        if carried:
            self._add_whole(results_item(f"rs_{self._turn}{len(self.state.items):03d}", carried))
        self._turn = event.turn

    def _finish(self, event: Finish, out: list[None]) -> None:
        cut = self.state.cut_by(event)
        self._close(CUT_OFF if cut or self._pending_stop is None else self._pending_stop)
        self.state.finish(event.usage, cut=cut)
        self._end()

    def _fail(self, info: ErrorInfo, out: list[None]) -> None:
        if self.state.ended:
            return
        self._break_off()
        self.state.fail(info)
        self._end()

    def _break_off(self) -> None:
        self._close_message()
        for search in self._searches.values():
            self.state.items[search.index] = search.json("failed")
        self._searches.clear()
        # An open item gets no end: agents that retry keep the items that have one.
        half = self._item.final(CUT_OFF) if self._item is not None else None
        if half is not None:
            self.state.items.append(half)
        self._item = None

    def _end(self) -> None:
        self._writer.event(self.state.status, {"response": self.state.document()})
        self._writer.end()


class _HiddenItem(OutputItem):
    """A block that is not sent."""

    def final(self, stop: BlockStop) -> None:
        return None


class CompactionStream(ResponsesStream):
    """Renders a compaction: one item with the model's summary, sealed. Codex treats any other item
    as a failure, so neither reasoning nor text is sent; before the item the stream has only
    keep-alive events."""

    def __init__(self, answer: AnswerInfo, shape: ResponsesShape, sealer: TextSealer) -> None:
        super().__init__(answer, shape)
        self._sealer = sealer
        self._texts: list[_HiddenItem] = []

    def _new_item(self, start: BlockStart) -> OutputItem:
        item = _HiddenItem(self._writer, "", 0)
        if start.kind == "text":
            self._texts.append(item)
        return item

    def _finish(self, event: Finish, out: list[None]) -> None:
        summary = "\n".join(text for item in self._texts if (text := item.text)).strip()
        if not summary:
            self._fail(NO_SUMMARY, out)
            return
        sealed = seal_summary(self._sealer, summary)
        item = {
            "id": f"cmp_{self.state.answer.turn}000",
            "type": "compaction",
            "encrypted_content": sealed,
        }
        self._add_whole(Raw(msgspec.json.encode(item)))
        self.state.finish(event.usage, cut=False)  # a summary is used even if it reached the limit
        self._end()


class ResponsesCollector(Collector):
    """Collects one turn into a document, from the final state of the stream, so that both agree."""

    def __init__(self, stream: ResponsesStream, user_messages: Sequence[Raw] | None = None) -> None:
        """`user_messages`: set for POST /v1/responses/compact: the messages that its document
        repeats."""
        self.stream = stream
        self._user_messages = user_messages

    @override
    def start(self, prepared: Sequence[Prepared]) -> None:
        self.stream.start(prepared)

    @override
    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        self.stream.events(events, choice)

    @override
    def body(self) -> bytes:
        """Raises TurnwireError where a compaction has no summary."""
        if self.stream.state.failure is not None:
            raise raised(self.stream.state.failure)
        document = self.stream.state.document()
        if self._user_messages is None or document.usage is None:
            return msgspec.json.encode(document)
        compaction = wire.Compaction(
            id=document.id,
            created_at=document.created_at,
            output=[*self._user_messages, *document.output],
            usage=document.usage,
        )
        return msgspec.json.encode(compaction)

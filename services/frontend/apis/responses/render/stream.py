"""Renders a turn as the event stream of the Responses API.

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
"""

from collections.abc import Sequence

from typing_extensions import override

from schemas.events import (
    BlockStart,
    BlockStop,
    Finish,
    HostedResults,
    TokenLogprob,
    TurnEvent,
)
from services.frontend.apis.responses import wire_events
from services.frontend.apis.responses.render.item_writer import ItemWriter
from services.frontend.apis.responses.render.items.open_item import ResponsesShape
from services.frontend.apis.responses.render.response_renderer import ResponseRenderer
from services.frontend.turns.interfaces import RenderInfo


class ResponsesStream(ResponseRenderer):
    """Renders the output of one answer: an item for each block."""

    def __init__(self, answer: RenderInfo, shape: ResponsesShape) -> None:
        super().__init__(answer, shape)
        self._items = ItemWriter(self.state)

    @override
    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events. Text alone is sent as one delta without making an event, as in
        `TurnRenderer`; here a delta also has a number, and is kept for the end of its item."""
        item = self._items.item
        if item.plain is not None:
            delta = self._encoder.encode_plain(events, item.plain, item.pieces)
            if delta:
                return delta
        return self.encode(self.api_events(events))

    def _start(self, event: BlockStart, out: wire_events.Events) -> None:
        self._items.begin(event, out)

    def _delta(self, text: str, tokens: list[TokenLogprob], out: wire_events.Events) -> None:
        self._items.add(text, tokens, out)

    def _stop(self, event: BlockStop, out: wire_events.Events) -> None:
        self._items.stop(event, out)

    def _results(self, event: HostedResults, out: wire_events.Events) -> None:
        self._items.add_results(event, out)

    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        cut = self.state.cut_by(event)
        self._items.end(out, cut=cut)
        self.state.finish(event.usage, cut=cut)
        out.append(self.state.last_event())

    @override
    def _break_off(self, out: wire_events.Events) -> None:
        self._items.break_off(out)

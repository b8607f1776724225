"""Renders reasoning."""

from msgspec import Raw
from typing_extensions import override

from schemas.events import BlockStop
from services.frontend.apis.responses import wire, wire_answers, wire_events
from services.frontend.apis.responses.render.events import plain_delta
from services.frontend.apis.responses.render.items.open_item import (
    CUT_OFF,
    ItemPlace,
    OpenItem,
)


class OpenReasoning(OpenItem):
    """Reasoning. A requested summary is the whole reasoning: pieces are sent as pieces of the
    summary, and the raw text follows at the end. If both were sent in pieces, OpenClaw would show
    the text twice; the AI SDK and Codex show only the summary."""

    def __init__(self, place: ItemPlace) -> None:
        dispatch = (
            wire_events.ResponsesReasoningDispatch if place.answer.dispatch_reasoning else None
        )
        super().__init__("rs", place, dispatch)
        self._summary = place.shape.summary
        self._sealed = place.shape.sealed

    @override
    def _open(self, out: wire_events.Events) -> None:
        part = wire.ReasoningText("")
        out.append(self._added(wire_answers.OutputReasoning(id=self.id, summary=[])))
        out.append(
            wire_events.ContentPartAdded(item_id=self.id, output_index=self.index, part=part)
        )
        if self._summary:
            summary = wire.SummaryText("")
            out.append(
                wire_events.SummaryPartAdded(item_id=self.id, output_index=self.index, part=summary)
            )
        self.plain = plain_delta(self._delta(""))

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw | None:
        if not self.pieces:
            return None
        if not stop.complete:
            self._dispatch = None
        text = self.text
        part = wire.ReasoningText(text)
        out.append(
            wire_events.ReasoningTextDone(item_id=self.id, output_index=self.index, text=text)
        )
        out.append(wire_events.ContentPartDone(item_id=self.id, output_index=self.index, part=part))
        if self._summary:
            self._end_summary(text, out)
        return self._done(self._item(stop), out)

    def _end_summary(self, text: str, out: wire_events.Events) -> None:
        part = wire.SummaryText(text)
        out.append(wire_events.SummaryTextDone(item_id=self.id, output_index=self.index, text=text))
        out.append(wire_events.SummaryPartDone(item_id=self.id, output_index=self.index, part=part))

    @override
    def cut_off(self) -> wire_answers.OutputReasoning | None:
        if not self.pieces:
            return None
        return self._item(CUT_OFF)

    @override
    def _delta(self, text: str) -> wire_events.SummaryTextDelta | wire_events.ReasoningTextDelta:
        if self._summary:
            return wire_events.SummaryTextDelta(
                item_id=self.id, output_index=self.index, delta=text
            )
        return wire_events.ReasoningTextDelta(item_id=self.id, output_index=self.index, delta=text)

    def _item(self, stop: BlockStop) -> wire_answers.OutputReasoning:
        text = self.text
        item = wire_answers.OutputReasoning(
            id=self.id, summary=[], content=[wire.ReasoningText(text)]
        )
        if self._summary:
            item.summary = [wire.SummaryText(text)]
        if self._sealed:
            item.encrypted_content = stop.seal
        if not stop.complete:
            item.status = "incomplete"
        return item

"""Renders reasoning."""

from collections.abc import Sequence

from msgspec import Raw
from typing_extensions import override

from schemas.events import BlockStop, TokenLogprob
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.render.events import plain_delta
from services.frontend.apis.responses.render.items import (
    CUT_OFF,
    ItemPlace,
    OpenItem,
    encode_item,
)


class OpenReasoning(OpenItem):
    """Reasoning. A requested summary is the whole reasoning: pieces are sent as pieces of the
    summary, and the raw text follows at the end. If both were sent in pieces, OpenClaw would show
    the text twice; the AI SDK and Codex show only the summary."""

    def __init__(self, place: ItemPlace) -> None:
        super().__init__("rs", place)
        self._summary = place.shape.summary
        self._sealed = place.shape.sealed
        self._dispatched = place.answer.dispatch_reasoning

    @override
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: list[wire.Event]) -> None:
        if not text:
            return
        if not self.pieces:
            self._open(out)
        self.pieces.append(text)
        out.append(self._delta(text))

    def _open(self, out: list[wire.Event]) -> None:
        part = wire.ReasoningText("")
        out.append(self._added(wire.OutputReasoning(id=self.id, summary=[])))
        out.append(wire.ContentPartAdded(item_id=self.id, output_index=self.index, part=part))
        if self._summary:
            summary = wire.SummaryText("")
            out.append(
                wire.SummaryPartAdded(item_id=self.id, output_index=self.index, part=summary)
            )
        self.plain = plain_delta(self._delta(""))

    @override
    def end(self, stop: BlockStop, out: list[wire.Event]) -> Raw | None:
        if not self.pieces:
            return None
        self._end_text(self.text, out)
        if self._summary:
            self._end_summary(self.text, out)
        item = encode_item(self._item(stop))
        out.append(self._done(item))
        if self._dispatched:
            out.append(wire.ReasoningDispatch(self.index, item))
        return item

    def _end_text(self, text: str, out: list[wire.Event]) -> None:
        part = wire.ReasoningText(text)
        out.append(wire.ReasoningTextDone(item_id=self.id, output_index=self.index, text=text))
        out.append(wire.ContentPartDone(item_id=self.id, output_index=self.index, part=part))

    def _end_summary(self, text: str, out: list[wire.Event]) -> None:
        part = wire.SummaryText(text)
        out.append(wire.SummaryTextDone(item_id=self.id, output_index=self.index, text=text))
        out.append(wire.SummaryPartDone(item_id=self.id, output_index=self.index, part=part))

    @override
    def cut_off(self) -> wire.OutputReasoning | None:
        if not self.pieces:
            return None
        return self._item(CUT_OFF)

    def _delta(self, text: str) -> wire.SummaryTextDelta | wire.ReasoningTextDelta:
        if self._summary:
            return wire.SummaryTextDelta(item_id=self.id, output_index=self.index, delta=text)
        return wire.ReasoningTextDelta(item_id=self.id, output_index=self.index, delta=text)

    def _item(self, stop: BlockStop) -> wire.OutputReasoning:
        text = self.text
        item = wire.OutputReasoning(id=self.id, summary=[], content=[wire.ReasoningText(text)])
        if self._summary:
            item.summary = [wire.SummaryText(text)]
        if self._sealed:
            item.encrypted_content = stop.seal
        if not stop.complete:
            item.status = "incomplete"
        return item

"""Renders messages and reasoning: the events of each while its block is open, and its item in the
Response.

Such an item opens with its first character, so it is never empty. The text does not depend on how
the turn's events were split.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.events import BlockStop, TokenLogprob, Usage
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.render.citations import url_citations
from services.frontend.apis.responses.render.events import Plain, plain_delta
from services.frontend.apis.responses.request.tools import ToolName
from services.frontend.apis.shared.openai.chunks import logprob
from services.frontend.turns.interfaces import AnswerInfo

CUT_OFF = BlockStop(0, complete=False)
"""The end of a block that was open when the turn ended."""
_encode = msgspec.json.Encoder().encode


class ResponsesShape(Struct, frozen=True):
    """The request's settings for its answer."""

    names: Mapping[str, ToolName]
    """Tools by their rendered names."""
    echo: Mapping[str, Any]
    """The members of the Response object that repeat the request."""
    sealed: bool = False
    """Reasoning carries `encrypted_content`."""
    summary: bool = False
    """Reasoning is also sent as its summary, which clients show."""
    sources: bool = False
    """Web searches carry the URLs that they found."""
    logprobs: bool = False
    prefill: bool = False
    """Nothing is generated, and an answer without output is complete."""
    compared: bool = False
    """The prompt is compared with another response's."""
    compacted: bool = False
    """The input has a compaction item."""
    before: Sequence[Raw] = ()
    """Items from before the turn, which come first in the output."""
    spent: Usage = Usage()
    """The usage of making `before`."""


class ItemPlace(Struct, frozen=True):
    """The answer that an item belongs to, and its place there."""

    answer: AnswerInfo
    shape: ResponsesShape
    turn: str
    """The id of the item's turn. Each round of hosted tools is a turn."""
    index: int
    """The position in the Response's `output`."""

    def item_id(self, prefix: str) -> str:
        """The id of the item at this place."""
        return f"{prefix}_{self.turn}{self.index:03d}"


class OpenItem(ABC):
    """One block of the turn as an output item. Its methods append its events to `out`."""

    plain: Plain | None = None
    """Set if the next piece only has to be appended to `pieces` and sent between these bytes."""

    def __init__(self, prefix: str, place: ItemPlace) -> None:
        """`prefix`: of the item's id."""
        self.id = place.item_id(prefix)
        self.index = place.index
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    def begin(self, out: list[wire.Event]) -> None:  # noqa: B027  items of text begin later
        """Begins a call."""

    @abstractmethod
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: list[wire.Event]) -> None:
        """Adds the next piece. `tokens`: as in `Delta.logprobs`."""

    @abstractmethod
    def end(self, stop: BlockStop, out: list[wire.Event]) -> Raw | None:
        """Ends the item. Returns it for the Response; None where it has none.

        Agents run calls on `output_item.done`, so a cut-off call that looks complete has none.
        """

    @abstractmethod
    def cut_off(self) -> wire.OutputItem | None:
        """The item of a turn that ended before it; None where the Response has none."""

    def _added(self, item: wire.OutputItem) -> wire.OutputItemAdded:
        return wire.OutputItemAdded(output_index=self.index, item=encode_item(item))

    def _done(self, item: Raw) -> wire.OutputItemDone:
        return wire.OutputItemDone(output_index=self.index, item=item)


class OpenMessage(OpenItem):
    """Text for the user."""

    def __init__(self, place: ItemPlace, titles: Mapping[str, str]) -> None:
        """`titles`: the titles of pages that searches found, by URL."""
        super().__init__("msg", place)
        self._titles = titles
        self._with_logprobs = place.shape.logprobs
        self._logprobs: list[dict[str, Any]] = []

    @override
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: list[wire.Event]) -> None:
        if not text and not self.pieces:
            return
        logprobs: list[dict[str, Any]] = []
        if self._with_logprobs:
            logprobs = [logprob(token) for token in tokens]
        if text and not self.pieces:
            self._open(out)
        self._logprobs += logprobs
        if text:
            self.pieces.append(text)
            out.append(self._delta(text, logprobs))

    def _open(self, out: list[wire.Event]) -> None:
        opening = wire.TextPart("", [], [])
        out.append(self._added(self._item("in_progress", [])))
        out.append(wire.ContentPartAdded(item_id=self.id, output_index=self.index, part=opening))
        if not self._with_logprobs:
            self.plain = plain_delta(self._delta("", []))

    @override
    def end(self, stop: BlockStop, out: list[wire.Event]) -> Raw | None:
        if not self.pieces:
            return None
        id, index = self.id, self.index
        citations = url_citations(self.text, self._titles)
        part = self._part(citations)
        for at, citation in enumerate(citations):
            out.append(
                wire.OutputTextAnnotationAdded(
                    item_id=id, output_index=index, annotation_index=at, annotation=citation
                )
            )
        out.append(
            wire.OutputTextDone(
                item_id=id, output_index=index, text=part.text, logprobs=self._logprobs
            )
        )
        out.append(wire.ContentPartDone(item_id=id, output_index=index, part=part))
        status: wire.ItemStatus = "completed" if stop.complete else "incomplete"
        item = encode_item(self._item(status, [part]))
        out.append(self._done(item))
        return item

    @override
    def cut_off(self) -> wire.OutputMessage | None:
        if not self.pieces:
            return None
        return self._item("incomplete", [self._part([])])

    def _delta(self, text: str, logprobs: list[dict[str, Any]]) -> wire.OutputTextDelta:
        return wire.OutputTextDelta(
            item_id=self.id, output_index=self.index, delta=text, logprobs=logprobs
        )

    def _part(self, citations: list[wire.UrlCitation]) -> wire.TextPart:
        return wire.TextPart(self.text, citations, self._logprobs)

    def _item(self, status: wire.ItemStatus, content: list[wire.TextPart]) -> wire.OutputMessage:
        return wire.OutputMessage(id=self.id, status=status, content=content)


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
        id, index = self.id, self.index
        out.append(self._added(wire.OutputReasoning(id=id, summary=[])))
        out.append(
            wire.ContentPartAdded(item_id=id, output_index=index, part=wire.ReasoningText(""))
        )
        if self._summary:
            out.append(
                wire.SummaryPartAdded(item_id=id, output_index=index, part=wire.SummaryText(""))
            )
        self.plain = plain_delta(self._delta(""))

    @override
    def end(self, stop: BlockStop, out: list[wire.Event]) -> Raw | None:
        if not self.pieces:
            return None
        id, index, text = self.id, self.index, self.text
        content = wire.ReasoningText(text)
        out.append(wire.ReasoningTextDone(item_id=id, output_index=index, text=text))
        out.append(wire.ContentPartDone(item_id=id, output_index=index, part=content))
        if self._summary:
            summary = wire.SummaryText(text)
            out.append(wire.SummaryTextDone(item_id=id, output_index=index, text=text))
            out.append(wire.SummaryPartDone(item_id=id, output_index=index, part=summary))
        item = encode_item(self._item(stop))
        out.append(self._done(item))
        if self._dispatched:
            out.append(wire.ReasoningDispatch(index, item))
        return item

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


def encode_item(item: wire.OutputItem) -> Raw:
    """The JSON of an item."""
    return Raw(_encode(item))

"""Renders output items: the events of each while its block is open, and its JSON in the Response.

A text or reasoning item opens with its first character, so it is never empty. The text does not
depend on how the turn's events were split.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.events import BlockStop, TokenLogprob, Usage
from services.frontend.apis.responses.render.events import EventWriter, delta_head
from services.frontend.apis.responses.request.tools import ToolName
from services.frontend.apis.shared.openai.chunks import logprob

CUT_OFF = BlockStop(0, complete=False)
"""The end of a block that was open when the turn ended."""
_encode = msgspec.json.Encoder().encode


_ENDS = r"(?![A-Za-z0-9_/]|[-.?#&=%~+:@][A-Za-z0-9_/%])"
"""Matches where a URL ends: no character follows that would make it longer."""


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


class OutputItem(ABC):
    """One block of the turn as an output item. It writes its own events."""

    delta = ""
    """The event of a piece of text; empty for items that are sent when they are complete."""
    place = ""
    """Members of that event: the place of the text in the item."""
    dispatch = ""
    """The event that repeats the finished item for clients that request it."""

    def __init__(self, writer: EventWriter, id: str, index: int) -> None:
        """`index`: its position in the Response's `output`."""
        self.writer = writer
        self.id = id
        self.index = index
        self.pieces: list[str] = []
        self.head = delta_head(f"response.{self.delta}.delta", id, index, self.place)
        self.tail = b"}\n\n"
        self.plain = False
        """Whether the next piece only has to be appended to `pieces` and written between `head` and
        `tail`."""

    @property
    def text(self) -> str:
        """The text that was sent so far."""
        return "".join(self.pieces)

    def begin(self) -> None:  # noqa: B027  other items begin with their first character
        """Begins a call."""

    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Adds the next piece."""
        if text:
            self.pieces.append(text)
            if self.delta:
                self.writer.delta(self.head, text, self.tail)

    def end(self, stop: BlockStop) -> Raw | None:
        """Ends the item, and returns its `final` form."""
        item = self.final(stop)
        if item is not None and self._end_content(item, stop):
            self.writer.item("done", self.index, item)
            if self.dispatch:
                self.writer.dispatch(self.dispatch, self.index, item)
        return item

    @abstractmethod
    def final(self, stop: BlockStop) -> Raw | None:
        """The item in the Response; None where it has none."""

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        """Writes the events that repeat the content. Returns whether `output_item.done` follows:
        agents run calls on it, so a cut-off call that looks complete has none."""
        return True

    def _event(self, name: str, fields: dict[str, Any]) -> None:
        self.writer.event(name, {"item_id": self.id, "output_index": self.index, **fields})


class MessageItem(OutputItem):
    """Text for the user."""

    delta = "output_text"
    place = ',"content_index":0'

    def __init__(self, writer: EventWriter, turn: str, index: int, shape: ResponsesShape) -> None:
        super().__init__(writer, f"msg_{turn}{index:03d}", index)
        self.tail = b',"logprobs":[]}\n\n'
        self.annotations: list[dict[str, Any]] = []
        """Must be set before `end`."""
        self._logprobs: list[dict[str, Any]] = []
        self._with_logprobs = shape.logprobs

    @override
    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        if text and not self.pieces:
            self.writer.item("added", self.index, self._json("in_progress"))
            self._event("content_part.added", {"content_index": 0, "part": self._part()})
            self.plain = not self._with_logprobs
        if self._with_logprobs and (text or self.pieces):
            new = [*map(logprob, logprobs)]
            self._logprobs += new
            self.tail = b',"logprobs":%b}\n\n' % _encode(new)
        super().add(text)

    @override
    def final(self, stop: BlockStop) -> Raw | None:
        return (
            self._json("completed" if stop.complete else "incomplete", self._part())
            if self.pieces
            else None
        )

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        for index, annotation in enumerate(self.annotations):
            fields = {"content_index": 0, "annotation_index": index, "annotation": annotation}
            self._event("output_text.annotation.added", fields)
        self._event(
            "output_text.done", {"content_index": 0, "text": self.text, "logprobs": self._logprobs}
        )
        self._event("content_part.done", {"content_index": 0, "part": self._part()})
        return True

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": self.annotations,
            "logprobs": self._logprobs,
        }

    def _json(self, status: str, *content: dict[str, Any]) -> Raw:
        return raw(
            {
                "id": self.id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": content,
            }
        )


class ReasoningItem(OutputItem):
    """Reasoning. A requested summary is the whole reasoning: pieces are sent as pieces of the
    summary, and the raw text follows at the end. If both were sent in pieces, OpenClaw would show
    the text twice; the AI SDK and Codex show only the summary."""

    dispatch = "reasoning_dispatch"

    def __init__(self, writer: EventWriter, turn: str, index: int, shape: ResponsesShape) -> None:
        self._summary, self._sealed = shape.summary, shape.sealed
        self.delta = "reasoning_summary_text" if shape.summary else "reasoning_text"
        self.place = ',"summary_index":0' if shape.summary else ',"content_index":0'
        super().__init__(writer, f"rs_{turn}{index:03d}", index)

    @override
    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        if text and not self.pieces:
            self.writer.item(
                "added", self.index, raw({"id": self.id, "type": "reasoning", "summary": []})
            )
            self._event(
                "content_part.added", {"content_index": 0, "part": _part("reasoning_text", "")}
            )
            if self._summary:
                self._event(
                    "reasoning_summary_part.added",
                    {"summary_index": 0, "part": _part("summary_text", "")},
                )
            self.plain = True
        super().add(text)

    @override
    def final(self, stop: BlockStop) -> Raw | None:
        if not self.pieces:
            return None
        text = Raw(_encode(self.text))
        summary = [_part("summary_text", text)] if self._summary else []
        content = [_part("reasoning_text", text)]
        item: dict[str, Any] = {
            "id": self.id,
            "type": "reasoning",
            "summary": summary,
            "content": content,
        }
        if self._sealed:
            item["encrypted_content"] = stop.seal
        if not stop.complete:
            item["status"] = "incomplete"
        return raw(item)

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        text = self.text
        self._event("reasoning_text.done", {"content_index": 0, "text": text})
        self._event(
            "content_part.done", {"content_index": 0, "part": _part("reasoning_text", text)}
        )
        if self._summary:
            self._event("reasoning_summary_text.done", {"summary_index": 0, "text": text})
            self._event(
                "reasoning_summary_part.done",
                {"summary_index": 0, "part": _part("summary_text", text)},
            )
        return True


def raw(item: dict[str, Any]) -> Raw:
    """The JSON of an item."""
    return Raw(_encode(item))


def _part(kind: str, text: str | Raw) -> dict[str, Any]:
    return {"type": kind, "text": text}


def url_citations(text: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """The `url_citation` annotations of a text, in its order. `titles`: the titles of pages by URL.

    A citation covers a Markdown link with the URL, or else the URL. Indexes count characters; the
    end is exclusive.
    """
    written = [url for url in titles if url in text]
    if not written:
        return []
    urls = "|".join(map(re.escape, sorted(written, key=len, reverse=True)))
    pattern = re.compile(
        rf"\[[^\[\]\n]*\]\(<?(?P<linked>{urls}){_ENDS}>?[^()\n]*\)|(?P<bare>{urls}){_ENDS}"
    )
    citations = []
    for match in pattern.finditer(text):
        url = match["linked"] or match["bare"]
        place = {"start_index": match.start(), "end_index": match.end()}
        citations.append({"type": "url_citation", **place, "url": url, "title": titles[url]})
    return citations

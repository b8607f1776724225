"""Renders messages: text for the user, and the pages that it cites."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Raw
from typing_extensions import override

from schemas.events import BlockStop, TokenLogprob
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.render.events import plain_delta
from services.frontend.apis.responses.render.items.open_item import ItemPlace, OpenItem
from services.frontend.apis.shared.openai.chunks import logprob

_ENDS = r"(?![A-Za-z0-9_/]|[-.?#&=%~+:@][A-Za-z0-9_/%])"
"""Matches where a URL ends: no character follows that would make it longer."""


class OpenMessage(OpenItem):
    """Text for the user."""

    def __init__(self, place: ItemPlace, titles: Mapping[str, str]) -> None:
        """`titles`: the titles of pages that searches found, by URL."""
        super().__init__("msg", place)
        self._titles = titles
        self._with_logprobs = place.shape.logprobs
        self._logprobs: wire_answers.TokenLogprobs = []

    @override
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: wire_events.Events) -> None:
        if not text and not self.pieces:
            return
        logprobs: wire_answers.TokenLogprobs = []
        if self._with_logprobs:
            logprobs = [logprob(token) for token in tokens]
        if text and not self.pieces:
            self._open(out)
        self._logprobs += logprobs
        if text:
            self.pieces.append(text)
            out.append(self._text_delta(text, logprobs))

    @override
    def _open(self, out: wire_events.Events) -> None:
        opening = wire_answers.ResponsesOutputTextPart("", [], [])
        out.append(self._added(self._item("in_progress", [])))
        out.append(
            wire_events.ContentPartAdded(item_id=self.id, output_index=self.index, part=opening)
        )
        if not self._with_logprobs:
            self.plain = plain_delta(self._text_delta("", []))

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw | None:
        if not self.pieces:
            return None
        part = self._part(url_citations(self.text, self._titles))
        self._end_part(part, out)
        status: wire_answers.ItemStatus = "completed" if stop.complete else "incomplete"
        return self._done(self._item(status, [part]), out)

    def _end_part(
        self, part: wire_answers.ResponsesOutputTextPart, out: wire_events.Events
    ) -> None:
        for number, citation in enumerate(part.annotations):
            out.append(
                wire_events.OutputTextAnnotationAdded(
                    item_id=self.id,
                    output_index=self.index,
                    annotation_index=number,
                    annotation=citation,
                )
            )
        out.append(
            wire_events.OutputTextDone(
                item_id=self.id,
                output_index=self.index,
                text=part.text,
                logprobs=part.logprobs,
            )
        )
        out.append(wire_events.ContentPartDone(item_id=self.id, output_index=self.index, part=part))

    @override
    def cut_off(self) -> wire_answers.OutputMessage | None:
        if not self.pieces:
            return None
        return self._item("incomplete", [self._part([])])

    def _text_delta(
        self, text: str, logprobs: wire_answers.TokenLogprobs
    ) -> wire_events.OutputTextDelta:
        return wire_events.OutputTextDelta(
            item_id=self.id, output_index=self.index, delta=text, logprobs=logprobs
        )

    def _part(
        self, citations: list[wire_answers.UrlCitation]
    ) -> wire_answers.ResponsesOutputTextPart:
        return wire_answers.ResponsesOutputTextPart(self.text, citations, self._logprobs)

    def _item(
        self, status: wire_answers.ItemStatus, content: list[wire_answers.ResponsesOutputTextPart]
    ) -> wire_answers.OutputMessage:
        return wire_answers.OutputMessage(id=self.id, status=status, content=content)


def url_citations(text: str, titles: Mapping[str, str]) -> list[wire_answers.UrlCitation]:
    """The citations of a text, in its order. `titles`: the titles of pages by URL.

    A citation covers a Markdown link with the URL, or else the URL. Indexes count characters; the
    end is exclusive.
    """
    urls = [url for url in titles if url in text]
    if not urls:
        return []
    citations = []
    for match in _pattern(urls).finditer(text):
        url = match["linked"] or match["bare"]
        citations.append(wire_answers.UrlCitation(match.start(), match.end(), url, titles[url]))
    return citations


def _pattern(urls: list[str]) -> re.Pattern[str]:
    """Matches citations of these URLs, the longest first: one may begin with another."""
    longest_first = sorted(urls, key=len, reverse=True)
    any_url = "|".join(map(re.escape, longest_first))
    return re.compile(
        rf"\[[^\[\]\n]*\]\(<?(?P<linked>{any_url}){_ENDS}>?[^()\n]*\)|(?P<bare>{any_url}){_ENDS}"
    )

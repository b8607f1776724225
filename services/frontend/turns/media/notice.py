"""Adds a note to the answer: the user learns that the model does not receive the conversation's images. Pure.

Without it a user does not learn that an answer about a screenshot was made without the screenshot. The note is text,
because text is what every client of every API shows, and it stands behind the text of the first turn that ends without
a call, because some clients show only that. It is no output of the model: where a client returns it, it is removed
before the prompt is made, so that the next prompt extends this one. The returned note is also how a later request of
the session shows that the user has it.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Literal, TypeAlias

from msgspec.structs import replace

from schemas.conversation import Conversation, Media, Part, Result, Text, Turn
from schemas.events import BlockStart, BlockStop, Delta, Finish, FinishReason, Prepared, TurnEvent
from services.frontend.turns.interfaces import TurnSink
from services.frontend.turns.summary import SummaryRequest

MediaKind: TypeAlias = Literal["image", "document", "audio"]

_NOUNS: dict[MediaKind, str] = {"image": "images", "document": "documents without readable text", "audio": "audio"}
_END = " are not shown to this model. It gets only a line with type and size instead.]"


def media_of(conversation: Conversation) -> list[Media]:
    """The media of a conversation, those in results included."""
    found: list[Media] = []
    for turn in conversation.turns:
        for part in turn.parts:
            if type(part) is Text:  # most parts; this runs for every part of every request
                continue
            if isinstance(part, Result):
                for inner in part.parts:
                    if isinstance(inner, Media):
                        found.append(inner)
            elif isinstance(part, Media):
                found.append(part)
    return found


def notice(kinds: Iterable[MediaKind]) -> str:
    """The note about media of these kinds, of which there is at least one."""
    there = set(kinds)
    *others, last = [noun for kind, noun in _NOUNS.items() if kind in there]
    return f"\n\n[Note from the server: {', '.join(others)}{' and ' if others else ''}{last}{_END}"


_KINDS: dict[str, frozenset[MediaKind]] = {
    notice(kinds): frozenset(kinds) for size in range(1, len(_NOUNS) + 1) for kinds in combinations(_NOUNS, size)
}
"""Every note, and what it is about."""


def without_notices(conversation: Conversation) -> tuple[Conversation, frozenset[MediaKind]]:
    """The conversation as the model wrote it, and the kinds of media that the user has been notified of."""
    known: frozenset[MediaKind] = frozenset()
    turns = conversation.turns
    for at, turn in enumerate(conversation.turns):
        if turn.role != "assistant":
            continue
        for part in turn.parts:
            if type(part) is Text and part.text.endswith(_END):
                turns = turns if turns is not conversation.turns else list(turns)
                turns[at], kinds = _without_notices(turn)
                known |= kinds
                break
    return (conversation if turns is conversation.turns else replace(conversation, turns=turns)), known


def wants_notice(conversation: Conversation) -> bool:
    """Whether text can be added to the answer: not to one that is read by a program, as a summary is by this server."""
    sampling = conversation.sampling
    if isinstance(conversation, SummaryRequest):
        return False
    return conversation.format is None and sampling.logprobs is None and not sampling.return_token_ids


class NoticeSink:
    """The `TurnSink` in front of another one that adds a note to an answer: at the end of a text with which the turn
    ends, if the model stopped by itself and made no call."""

    def __init__(self, sink: TurnSink, text: str) -> None:
        self._sink = sink
        self._text = text
        self._kind = ""
        """Of the last block."""
        self._called = False
        self._stop: BlockStop | None = None
        """The end of a text, held until the next event shows whether the note comes before it."""

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`."""
        self._sink.opened(prepared)

    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        """See `TurnSink.push`."""
        out: list[TurnEvent] = []
        for event in events:
            if self._stop is not None:
                out += self._end(self._stop, event)
                self._stop = None
            if isinstance(event, BlockStart):
                self._kind = event.kind
                self._called = self._called or event.kind == "tool_use"
            if isinstance(event, BlockStop) and self._kind == "text" and not self._called:
                self._stop = event
            else:
                out.append(event)
        if out:
            self._sink.push(out, tokens)

    def _end(self, stop: BlockStop, following: TurnEvent) -> list[TurnEvent]:
        if not isinstance(following, Finish) or following.reason is not FinishReason.STOP:
            return [stop]
        added = Delta(stop.block, stop.length, self._text)
        return [added, replace(stop, length=stop.length + len(self._text))]


def _without_notices(turn: Turn) -> tuple[Turn, frozenset[MediaKind]]:
    known: frozenset[MediaKind] = frozenset()
    parts: list[Part] = []
    for part in turn.parts:
        if not (isinstance(part, Text) and part.text.endswith(_END)):
            parts.append(part)
            continue
        text = next((text for text in _KINDS if part.text.endswith(text)), "")
        known |= _KINDS.get(text, frozenset())
        if written := part.text.removesuffix(text):
            parts.append(Text(written))
    return replace(turn, parts=parts), known

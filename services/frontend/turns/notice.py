"""Adds a note to the answer for the user: the model does not receive the conversation's images.
Pure.

Without the note, an answer about a screenshot would not show that it was made without the
screenshot. The note is text, because every client of every API shows text. It follows the text of
the first turn that ends without a call, because some clients show only that. The model did not
write it: a note that a client sends back is removed before the prompt is made, so that the next
prompt extends this one. It also shows that the user already has the note.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Literal, TypeAlias

from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Conversation, Message, Part, Text
from schemas.events import BlockStart, BlockStop, Delta, Finish, FinishReason, Prepared, TurnEvent
from services.frontend.turns.interfaces import TurnSink

MediaKind: TypeAlias = Literal["image", "document", "audio"]

_NOUNS: dict[MediaKind, str] = {
    "image": "images",
    "document": "documents without readable text",
    "audio": "audio",
}
_END = " are not shown to this model. It gets only a line with type and size instead.]"


def make_notice(kinds: Iterable[MediaKind]) -> str:
    """Returns the note about media of these kinds, at least one."""
    present = set(kinds)
    *others, last = [noun for kind, noun in _NOUNS.items() if kind in present]
    media = f"{', '.join(others)} and {last}" if others else last
    return f"\n\n[Note from the server: {media}{_END}"


def _all_kinds() -> Iterator[frozenset[MediaKind]]:
    for size in range(1, len(_NOUNS) + 1):
        for kinds in combinations(_NOUNS, size):
            yield frozenset(kinds)


_KINDS: dict[str, frozenset[MediaKind]] = {make_notice(kinds): kinds for kinds in _all_kinds()}
"""The kinds of media of every possible note."""


def without_notices(conversation: Conversation) -> tuple[Conversation, frozenset[MediaKind]]:
    """Removes notes from the model's messages. Returns the conversation, and the kinds of media of
    these notes."""
    noted: set[MediaKind] = set()
    messages: list[Message] = []
    for message in conversation.messages:
        kinds = _noted_kinds(message)
        noted |= kinds
        messages.append(_without_notice(message) if kinds else message)
    if not noted:
        return conversation, frozenset()
    return replace(conversation, messages=messages), frozenset(noted)


def may_have_notice(conversation: Conversation) -> bool:
    """Returns whether text may be added to the answer. False for answers that programs read."""
    if conversation.format is not None or conversation.summary:
        return False
    sampling = conversation.sampling
    return sampling.logprobs is None and not sampling.return_token_ids


class NoticeSink(TurnSink):
    """Adds a note to the events for another sink: to the text that ends the turn, if the model
    stopped by itself and made no call."""

    def __init__(self, sink: TurnSink, text: str) -> None:
        self._sink = sink
        self._text = text
        self._kind = ""
        """The kind of the last block."""
        self._has_call = False
        self._stop: BlockStop | None = None
        """The end of a text block, held until the next event shows whether the note belongs before
        it."""

    @override
    def opened(self, prepared: Prepared) -> None:
        self._sink.opened(prepared)

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        out: list[TurnEvent] = []
        for event in events:
            if self._stop is not None:
                out += self._end(self._stop, event)
                self._stop = None
            if isinstance(event, BlockStart):
                self._kind = event.kind
                if event.kind == "tool_use":
                    self._has_call = True
            if isinstance(event, BlockStop) and self._kind == "text" and not self._has_call:
                self._stop = event
            else:
                out.append(event)
        if out:
            self._sink.push(out, tokens)

    def _end(self, stop: BlockStop, following: TurnEvent) -> list[TurnEvent]:
        if not isinstance(following, Finish) or following.reason is not FinishReason.STOP:
            return [stop]
        note = Delta(stop.block, stop.length, self._text)
        return [note, replace(stop, length=stop.length + len(self._text))]


def _noted_kinds(message: Message) -> frozenset[MediaKind]:
    """Returns the kinds of media of a message's notes."""
    if message.role != "assistant":
        return frozenset()
    notes = [_note_in(part) for part in message.parts]
    if not any(notes):
        return frozenset()
    return frozenset().union(*(_KINDS[note] for note in notes if note))


def _without_notice(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        note = _note_in(part)
        if not isinstance(part, Text) or not note:
            parts.append(part)
        elif part.text != note:
            parts.append(Text(part.text.removesuffix(note)))
    return replace(message, parts=parts)


def _note_in(part: Part) -> str:
    """Returns the note with which a part ends; "" for none."""
    if not isinstance(part, Text) or not part.text.endswith(_END):
        return ""
    return next((note for note in _KINDS if part.text.endswith(note)), "")

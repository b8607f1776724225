"""Reads the events of a server's answer into chunks. What a server sends is not judged here
(`answer.py`)."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from schemas.errors import EngineFailed
from schemas.events import UNKNOWN_WEIGHTS, FinishReason

E = TypeVar("E")

NO_EXPERTS = Raw(b"null")
START_LABEL = "default"
"""The label of the weights that vLLM and SGLang start with."""
_MOST_DIGITS = 18


class BadAnswer(EngineFailed):
    """A server's answer is not what the interface promises. It ends the turn: its tokens could be
    wrong."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the inference server sent a broken answer: {what}")


class TurnEnd(Struct, frozen=True):
    """Why a server ended a turn."""

    reason: FinishReason
    stop_id: int | None = None
    """The token at which it stopped; None: with another reason."""
    stop_logprobs: list[tuple[int, float]] | None = None


class Counts(Struct, frozen=True):
    """A server's own counts of a turn, which show what is lost on the way."""

    prompt: int
    output: int
    """Tokens up to here, with the one that ended the turn."""


class LabeledSpan(Struct):
    """Tokens of the output that weights with one label have decoded, as vLLM and SGLang send
    it."""

    version: str
    start: int
    end: int


class AnswerChunk(Struct):
    """The content of one event."""

    ids: list[int] = []
    """New tokens, without the one that ended the turn."""
    logprobs: list[list[tuple[int, float]]] | None = None
    """For each id of `ids`: (token id, log probability), the chosen one first."""
    end: TurnEnd | None = None
    closes: bool = False
    """The connection is closed after this event, with which the reader ends a turn that the server
    would go on with."""
    counts: Counts | None = None
    cached: int | None = None
    """Prompt tokens that the server found in its cache."""
    prompt_ids: list[int] = []
    """The prompt as the server has it, with what it made of the placeholders of images; empty:
    not reported."""
    weights: list[LabeledSpan] | None = None
    """With `end`: which weights have decoded the turn; None: not reported."""
    experts: Raw = NO_EXPERTS
    """With `end`: the experts to which its tokens were routed, a JSON string in base64."""

    def end_at_last_token(self) -> None:
        """Takes the last token for the one at which the server stopped."""
        logprobs = self.logprobs.pop() if self.logprobs else None
        self.end = TurnEnd(FinishReason.STOP, self.ids.pop(), logprobs)


class ReportedError(Struct):
    """An error in place of an event, as SGLang and llama-server send it."""

    message: str
    code: int = 500


class EventReader(ABC, Generic[E]):
    """Reads the events of one turn, in order."""

    def __init__(self, decoder: msgspec.json.Decoder[E]) -> None:
        self._decode = decoder.decode

    def read(self, data: bytes) -> AnswerChunk:
        """Returns the content of an event. Raises BadAnswer if it cannot be read, EngineFailed for
        an error that the server reports in the stream, HttpRefusal for one with a status."""
        try:
            event = self._decode(data)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"an event cannot be read: {error}") from error
        return self.chunk(event)

    @abstractmethod
    def chunk(self, event: E) -> AnswerChunk:
        """Returns the content of a decoded event. Raises as `read`."""


def version_of(label: str) -> int:
    """The version of a server's label. A label that is not a number becomes a version of its own
    below `UNKNOWN_WEIGHTS`, so that its prompts share no KV blocks with those of others."""
    if label == START_LABEL:
        return 0
    is_number = label.isdecimal() and len(label) <= _MOST_DIGITS
    return int(label) if is_number else UNKNOWN_WEIGHTS - 1 - crc32(label.encode())

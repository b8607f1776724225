"""An answer that is kept as it is sent, for those who ask for its stream again."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Raw

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo
from schemas.events import Prepared, TurnEvent
from services.frontend.dialects.base import Reply
from services.frontend.dialects.responses.ask import ResponsesAsk
from services.frontend.dialects.responses.document import Status
from services.frontend.dialects.responses.response import ResponsesCollector
from services.frontend.dialects.responses.stream import ResponsesStream
from services.frontend.responses.record import EventPacker


class Answer(Protocol):
    """An answer in any form, as far as it has come."""

    def response(self, status: Status | None = None) -> dict[str, Any]:
        """The Response object."""
        ...

    def output_items(self) -> list[Raw]:
        """The items that are finished."""
        ...


class RecordingStream:
    """A stream that remembers what it rendered."""

    def __init__(self, stream: ResponsesStream) -> None:
        self._stream = stream
        self._packer = EventPacker()

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """See `Renderer.start`."""
        return self._noted(self._stream.start(prepared))

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """See `Renderer.events`."""
        return self._noted(self._stream.events(events, choice))

    def error(self, info: ErrorInfo) -> bytes:
        """See `Renderer.error`."""
        return self._noted(self._stream.error(info))

    def response(self, status: Status | None = None) -> dict[str, Any]:
        """See `Answer.response`."""
        return self._stream.response(status)

    def output_items(self) -> list[Raw]:
        """See `Answer.output_items`."""
        return self._stream.output_items()

    def events_packed(self) -> bytes:
        """What it rendered so far, packed."""
        return self._packer.packed()

    def _noted(self, data: bytes) -> bytes:
        self._packer.add(data)
        return data


class RecordingAsk:
    """An `Ask` whose stream is a `RecordingStream`."""

    def __init__(self, ask: ResponsesAsk) -> None:
        self._ask = ask

    @property
    def conversations(self) -> Sequence[Conversation]:
        """See `Ask.conversations`."""
        return self._ask.conversations

    @property
    def stream(self) -> bool:
        """See `Ask.stream`."""
        return self._ask.stream

    @property
    def notes(self) -> Sequence[str]:
        """See `Ask.notes`."""
        return self._ask.notes

    def renderer(self, reply: Reply) -> RecordingStream:
        """See `Ask.renderer`."""
        return RecordingStream(self._ask.renderer(reply))

    def collector(self, reply: Reply) -> ResponsesCollector:
        """See `Ask.collector`."""
        return self._ask.collector(reply)

"""POST /v1/responses/compact: a conversation becomes its user messages and one sealed summary.

The summary is the answer of a turn over the whole conversation, whose prompt shares the prefix of the session. What a
client sends back of it, the dialect opens: it stands where the history stood.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.conversation import Conversation
from schemas.events import Prepared, TurnEvent
from services.frontend.dialects.base import Renderer, Reply
from services.frontend.dialects.responses.ask import ResponsesAsk
from services.frontend.dialects.responses.response import ResponsesCollector
from services.frontend.responses.intake import Asked


class CompactAsk:
    """An `Ask` whose one form of answer is the `response.compaction` document."""

    stream = False

    def __init__(self, asked: Asked) -> None:
        self._ask: ResponsesAsk = asked.ask
        self._said = [raw for raw in (*asked.history, *asked.items()) if _of_user(raw)]

    @property
    def conversations(self) -> Sequence[Conversation]:
        """See `Ask.conversations`."""
        return self._ask.conversations

    @property
    def notes(self) -> Sequence[str]:
        """See `Ask.notes`."""
        return self._ask.notes

    def renderer(self, reply: Reply) -> Renderer:
        """See `Ask.renderer`."""
        return self._ask.renderer(reply)

    def collector(self, reply: Reply) -> "CompactCollector":
        """See `Ask.collector`."""
        return CompactCollector(self._ask.collector(reply), self._said)


class CompactCollector:
    """A `Collector` of a compaction."""

    def __init__(self, collector: ResponsesCollector, said: list[Raw]) -> None:
        self._collector = collector
        self._said = said

    def start(self, prepared: Sequence[Prepared]) -> None:
        """See `Collector.start`."""
        self._collector.start(prepared)

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """See `Collector.events`."""
        self._collector.events(events, choice)

    def body(self) -> bytes:
        """See `Collector.body`. Raises EngineFailed where the model wrote no summary."""
        self._collector.body()
        response = self._collector.response()
        document: dict[str, Any] = {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*self._said, *self._collector.output_items()],
            "usage": response["usage"],
        }
        return msgspec.json.encode(document)


class _Kind(msgspec.Struct):
    type: str = ""
    role: str = ""


def _of_user(raw: Raw) -> bool:
    kind = _kind.decode(raw)
    return kind.type == "message" and kind.role == "user"


_kind = msgspec.json.Decoder(_Kind)

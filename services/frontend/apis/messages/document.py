"""Folds the events of a turn to one document of the Messages API."""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import asdict
from typing_extensions import override

from schemas.events import Prepared, TurnEvent
from services.frontend.apis.messages import wire_answers, wire_events
from services.frontend.apis.messages.message_renderer import MessageRenderer
from services.frontend.apis.shared.decode import is_json
from services.frontend.turns.interfaces import Collector, RenderInfo

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}


class MessageCollector(Collector):
    """Collects one turn into a Message: folds the events of its stream.

    The input of a call that was cut off has the members that are complete, as in the SDKs;
    `stop_reason` shows the cut.
    """

    def __init__(self, stream: MessageRenderer, answer: RenderInfo) -> None:
        """`answer`: that of the stream."""
        self.answer = answer
        self._stream = stream
        self._message: wire_answers.StartedAnswer
        self._pieces: list[str] = []
        """The text of the open block."""

    @override
    def start(self, prepared: Sequence[Prepared]) -> None:
        self._fold(self._stream.opening(prepared))

    @override
    def add(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        self._fold(self._stream.api_events(events))

    def message(self) -> wire_answers.MessagesAnswer:
        """The whole message. Raises RuntimeError where the turn has not finished."""
        if not isinstance(self._message, wire_answers.MessagesAnswer):
            raise RuntimeError("the turn has not finished")
        return self._message

    @override
    def body(self) -> bytes:
        """Raises RuntimeError where the turn has not finished."""
        return msgspec.json.encode(self.message())

    def _fold(self, events: Sequence[wire_events.Event]) -> None:
        for event in events:
            if isinstance(event, wire_events.MessageStart):
                self._message = event.message
            elif isinstance(event, wire_events.ContentBlockStart):
                self._message.content.append(event.content_block)
                self._pieces.clear()
            elif isinstance(event, wire_events.ContentBlockDelta):
                self._add(event.delta)
            elif isinstance(event, wire_events.ContentBlockStop):
                self._close(self._message.content[-1])
            elif isinstance(event, wire_events.MessagesMessageDelta):
                self._end(event)

    def _add(self, delta: wire_events.BlockDelta) -> None:
        block = self._message.content[-1]
        if isinstance(delta, wire_events.MessagesTextDelta):
            self._pieces.append(delta.text)
        elif isinstance(delta, wire_events.ThinkingDelta):
            self._pieces.append(delta.thinking)
        elif isinstance(delta, wire_events.InputJsonDelta):
            self._pieces.append(delta.partial_json)
        elif isinstance(delta, wire_events.SignatureDelta):
            assert isinstance(block, wire_answers.ThinkingContent)
            block.signature = delta.signature
        else:
            assert isinstance(block, wire_answers.CompactionContent)
            block.content = delta.content

    def _close(self, block: wire_answers.AnswerContent) -> None:
        text = "".join(self._pieces)
        if isinstance(block, wire_answers.TextContent):
            block.text = text
        elif isinstance(block, wire_answers.ThinkingContent):
            block.thinking = text
        elif isinstance(block, wire_answers.ToolUseContent):
            block.input = Raw(_input(text).encode())

    def _end(self, end: wire_events.MessagesMessageDelta) -> None:
        first = self._message.usage
        usage = wire_answers.AnswerUsage(
            **asdict(end.usage)
            | {"cache_creation": first.cache_creation, "service_tier": first.service_tier}
        )
        members = asdict(self._message) | asdict(end.delta) | asdict(end) | {"usage": usage}
        del members["delta"]
        self._message = wire_answers.MessagesAnswer(**members)


def _input(text: str) -> str:
    """The arguments of a call as a JSON object: unchanged if they are one, else without the member
    that was cut off."""
    depth = 0
    last_comma = 1
    for token in _JSON_TOKEN.finditer(text):
        depth += _DEPTHS.get(token[0], 0)
        if token[0] == "," and depth == 1:
            last_comma = token.start()

    candidates = [text]
    # A value at the end is complete if it has a closing character; a number may be cut.
    if text.endswith(('"', "]", "}")):
        candidates.append(text + "}")
    candidates.append(text[:last_comma] + "}")
    for candidate in candidates:
        if is_json(candidate, dict[str, Raw]):
            return candidate
    return "{}"

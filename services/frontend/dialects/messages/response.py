"""A turn as one Message document: what the stream says, in the same order.

A call that was cut off is left out: a document has no way to say that a call is not to be run, and its input would not
be JSON.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.events import BlockStart, BlockStop, Delta, Finish, Prepared, TurnEvent
from services.frontend.dialects.base import Reply
from services.frontend.dialects.messages.ending import first_usage, last_usage, stop_of
from services.frontend.dialects.messages.stream import call_id, is_object
from services.frontend.dialects.messages.wire import UNSEALED


class MessagesCollector:
    """Collects one turn."""

    def __init__(self, reply: Reply, *, omit_thinking: bool = False, context_management: bool = False) -> None:
        self._reply = reply
        self._omit_thinking = omit_thinking
        self._context_management = context_management
        self._content: list[dict[str, Any]] = []
        self._block: BlockStart | None = None
        self._texts: list[str] = []
        self._calls = 0
        self._finish: Finish | None = None
        self._usage: dict[str, Any] = {}

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Notes the size of the prompt."""
        self._usage = first_usage(prepared[0].prompt_tokens)

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """Takes the next events."""
        for event in events:
            if isinstance(event, Delta):
                self._texts.append(event.text)
            elif isinstance(event, BlockStart):
                self._block = event
                self._texts = []
            elif isinstance(event, BlockStop):
                self._stop(event)
            elif isinstance(event, Finish):
                if self._block is not None:
                    self._stop(BlockStop(self._block.block, complete=False))
                self._finish = event

    def body(self) -> bytes:
        """The Message. Call it after a Finish only."""
        if self._finish is None:
            raise RuntimeError("the turn has not finished")
        message: dict[str, Any] = {
            "id": f"msg_{self._reply.turn}",
            "type": "message",
            "role": "assistant",
            "model": self._reply.model,
            "content": self._content,
            **stop_of(self._finish, self._calls),
            "usage": {**self._usage, **last_usage(self._finish.usage)},
        }
        if self._context_management:
            message["context_management"] = {"applied_edits": []}
        return msgspec.json.encode(message)

    def _stop(self, event: BlockStop) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        text = "".join(self._texts)
        if block.kind == "tool_use":
            self._call(block, text or "{}", event.complete)
        elif text and block.kind == "text":
            self._content.append({"type": "text", "text": text})
        elif text:
            thinking = "" if self._omit_thinking else text
            self._content.append({"type": "thinking", "thinking": thinking, "signature": event.seal or UNSEALED})

    def _call(self, block: BlockStart, arguments: str, complete: bool) -> None:
        if not complete or not is_object(arguments):
            return
        self._calls += 1
        self._content.append(
            {
                "type": "tool_use",
                "id": call_id(block, self._reply.turn),
                "name": block.name or "",
                "input": Raw(arguments.encode()),
                "caller": {"type": "direct"},
            }
        )

"""A turn, or several side by side, as one chat.completion document: what the stream says, put together."""

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.events import BlockStart, BlockStop, Delta, Finish, Prepared, TokenLogprob, TurnEvent
from services.frontend.dialects.base import Reply
from services.frontend.dialects.chat.calls import CallWriter
from services.frontend.dialects.chat.logprobs import content_logprobs
from services.frontend.dialects.chat.seals import SealList
from services.frontend.dialects.chat.shape import Shape
from services.frontend.dialects.chat.stream import THINK
from services.frontend.dialects.openai_ending import reason_of, usage_of


class ChatCollector:
    """Collects one answer."""

    def __init__(self, reply: Reply, shape: Shape, choices: int = 1) -> None:
        self._reply = reply
        self._shape = shape
        self._choices = [_Choice(reply, shape, index) for index in range(choices)]

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Nothing is known yet that the end does not say."""

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """Takes the next events of a choice."""
        for event in events:
            self._choices[choice].take(event)

    def body(self) -> bytes:
        """The document. Call it after every choice's Finish only."""
        document: dict[str, Any] = {
            "id": f"chatcmpl-{self._reply.turn}",
            "object": "chat.completion",
            "created": self._reply.created,
            "model": self._reply.model,
            "choices": [choice.document() for choice in self._choices],
            "usage": usage_of([choice.ended().usage for choice in self._choices]),
            "system_fingerprint": self._shape.fingerprint,
        }
        if self._shape.service_tier is not None:
            document["service_tier"] = self._shape.service_tier
        return msgspec.json.encode(document)


class _Choice:
    """One choice of the answer."""

    def __init__(self, reply: Reply, shape: Shape, index: int) -> None:
        self._turn = f"{reply.turn}c{index}b"
        self._shape = shape
        self._index = index
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._calls: list[CallWriter] = []
        self._complete = 0
        self._tokens: list[TokenLogprob] = []
        self._block: BlockStart | None = None
        self._thinking = False
        self._seals = SealList(reply.turn, index)
        self._finish: Finish | None = None

    def take(self, event: TurnEvent) -> None:
        if isinstance(event, Delta):
            self._delta(event)
        elif isinstance(event, BlockStart):
            self._begin(event)
        elif isinstance(event, BlockStop):
            self._stop(event)
        elif isinstance(event, Finish):
            if self._block is not None:
                self._stop(BlockStop(self._block.block, complete=False))
            self._details += self._seals.take(None)
            self._finish = event

    def ended(self) -> Finish:
        if self._finish is None:
            raise RuntimeError("the turn has not finished")
        return self._finish

    def document(self) -> dict[str, Any]:
        calls = ("function_call" if self._shape.legacy else "tool_calls") if self._complete else None
        logprobs = content_logprobs(self._tokens) if self._tokens else None
        return {
            "index": self._index,
            "message": self._message(),
            "logprobs": logprobs,
            **reason_of(self.ended(), calls),
        }

    def _message(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
            "refusal": None,
        }
        reasoning = "".join(self._reasoning)
        if reasoning:
            both = ("reasoning_content", "reasoning")
            fields = both if self._shape.reasoning == "both" else (self._shape.reasoning,)
            message |= dict.fromkeys(fields, reasoning)
        if self._shape.details and self._details:
            message["reasoning_details"] = self._details
        if self._calls and self._shape.legacy:
            message["function_call"] = self._calls[0].legacy()
        elif self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        return message

    def _begin(self, event: BlockStart) -> None:
        self._block = event
        self._thinking = False
        if event.kind != "tool_use" or (self._shape.legacy and self._calls):
            return
        freeform = event.name in self._shape.freeform
        call = CallWriter(event, len(self._calls), self._turn, freeform=freeform, legacy=self._shape.legacy)
        self._calls.append(call)
        self._details += self._seals.take(call.id)

    def _delta(self, event: Delta) -> None:
        block = self._block
        if block is None:
            return
        if block.kind == "text":
            self._content.append(event.text)
            if event.logprobs and self._shape.logprobs:
                self._tokens += event.logprobs
        elif block.kind == "tool_use":
            if self._calls[-1].block is block:
                self._calls[-1].piece(event.text)
        elif event.text and self._shape.reasoning != "omitted":
            inline = self._shape.reasoning == "inline"
            opening = THINK[0] if inline and not self._thinking else ""
            self._thinking = True
            (self._content if inline else self._reasoning).append(opening + event.text)

    def _stop(self, event: BlockStop) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        if block.kind == "tool_use" and self._calls[-1].block is block:
            self._calls[-1].end(complete=event.complete)
            self._complete += event.complete
        elif block.kind == "reasoning" and self._thinking:
            if self._shape.reasoning == "inline":
                self._content.append(THINK[1])
            if event.seal:
                self._seals.add(event.seal)

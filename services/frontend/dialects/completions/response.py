"""Turns side by side as one text_completion document: what the stream says, put together."""

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.events import BlockStart, Delta, Finish, Prepared, TokenLogprob, TurnEvent
from services.frontend.dialects.base import Reply
from services.frontend.dialects.completions.shape import Shape, token_logprobs
from services.frontend.dialects.openai_ending import reason_of, usage_of


class CompletionsCollector:
    """Collects one answer."""

    def __init__(self, reply: Reply, shape: Shape) -> None:
        self._reply = reply
        self._shape = shape
        self._choices = [_Choice(echo) for echo in shape.echoes]

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Nothing is known yet that the end does not say."""

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """Takes the next events of a choice."""
        for event in events:
            self._choices[choice].take(event)

    def body(self) -> bytes:
        """The document. Call it after every choice's Finish only."""
        document: dict[str, Any] = {
            "id": f"cmpl-{self._reply.turn}",
            "object": "text_completion",
            "created": self._reply.created,
            "model": self._reply.model,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage_of([choice.ended().usage for choice in self._choices], self._shape.prompts),
            "system_fingerprint": self._shape.fingerprint,
        }
        return msgspec.json.encode(document)

    def _choice(self, index: int, choice: "_Choice") -> dict[str, Any]:
        logprobs = token_logprobs(choice.tokens) if choice.tokens and self._shape.logprobs else None
        return {"index": index, "text": "".join(choice.texts), "logprobs": logprobs, **reason_of(choice.ended())}


class _Choice:
    """One choice of the answer."""

    def __init__(self, echo: str) -> None:
        self.texts = [echo]
        self.tokens: list[tuple[int, TokenLogprob]] = []
        self._length = self._base = len(echo)
        self._finish: Finish | None = None

    def take(self, event: TurnEvent) -> None:
        if isinstance(event, Delta):
            self.texts.append(event.text)
            self.tokens += [(self._base + token.at, token) for token in event.logprobs or ()]
            self._length += len(event.text)
        elif isinstance(event, BlockStart):
            self._base = self._length
        elif isinstance(event, Finish):
            self._finish = event

    def ended(self) -> Finish:
        if self._finish is None:
            raise RuntimeError("the turn has not finished")
        return self._finish

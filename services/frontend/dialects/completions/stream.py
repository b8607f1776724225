"""Turns side by side as the chunks of Completions: text, then a finish_reason, for each choice; usage and [DONE]."""

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.errors import ErrorInfo
from schemas.events import BlockStart, BlockStop, Delta, Finish, Prepared, TokenLogprob, TurnEvent, Usage
from services.frontend.dialects.base import Reply, failure_of
from services.frontend.dialects.completions.shape import Shape, token_logprobs
from services.frontend.dialects.openai_ending import DONE, error_chunk, first_usage, reason_of, usage_of

_encode = msgspec.json.Encoder().encode


class CompletionsStream:
    """Renders one answer."""

    __slots__ = (
        "_bases",
        "_choices",
        "_end_tail",
        "_head",
        "_plain",
        "_shape",
        "_tail",
        "_usages",
    )

    def __init__(self, reply: Reply, shape: Shape) -> None:
        self._shape = shape
        head = {
            "id": f"cmpl-{reply.turn}",
            "object": "text_completion",
            "created": reply.created,
            "model": reply.model,
            "system_fingerprint": shape.fingerprint,
        }
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        tail = b'],"usage":null}\n\n' if shape.include_usage else b"]}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}' + tail
        self._end_tail = tail
        self._choices = [len(echo) for echo in shape.echoes]
        """Characters of each choice's text so far …"""
        self._bases = list(self._choices)
        """… and up to its open block."""
        self._plain = (
            [] if shape.logprobs else [self._head + b'{"index":%d,"text":' % i for i in range(len(shape.echoes))]
        )
        """What stands before the text of each choice, where it is but spliced in."""
        self._usages: dict[int, Usage] = {}

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """The prompts, where they are to be echoed."""
        each = len(prepared) // self._shape.prompts
        usage = first_usage(prepared[::each]) if self._shape.continuous_usage else None
        return b"".join(
            self._chunk(choice, echo, usage=usage) for choice, echo in enumerate(self._shape.echoes) if echo
        )

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next chunks of a choice. Deltas that came together leave together, as one."""
        if self._plain and len(events) == 1 and type(first := events[0]) is Delta and first.text:
            self._choices[choice] += len(first.text)
            return self._plain[choice] + _encode(first.text) + self._tail
        out: list[bytes] = []
        texts: list[str] = []
        tokens: list[TokenLogprob] = []
        for event in events:
            if isinstance(event, Delta):
                texts.append(event.text)
                tokens += event.logprobs or ()
                continue
            if texts:
                self._delta(choice, "".join(texts), tokens, out)
                texts.clear()
                tokens = []
            if isinstance(event, BlockStart):
                self._bases[choice] = self._choices[choice]
            elif not isinstance(event, BlockStop):
                self._end(event, choice, out)
        if texts:
            self._delta(choice, "".join(texts), tokens, out)
        return b"".join(out)

    def error(self, info: ErrorInfo) -> bytes:
        """The error chunk; nothing follows it."""
        return error_chunk(info)

    def _delta(self, choice: int, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
        if tokens and self._shape.logprobs:
            placed = [(self._bases[choice] + token.at, token) for token in tokens]
            out.append(self._chunk(choice, text, logprobs=token_logprobs(placed)))
        elif text:
            out.append(self._head + b'{"index":%d,"text":' % choice + _encode(text) + self._tail)
        self._choices[choice] += len(text)

    def _end(self, event: TurnEvent, choice: int, out: list[bytes]) -> None:
        failure = failure_of(event)
        if failure is not None:
            out.append(error_chunk(failure))
            return
        if not isinstance(event, Finish):
            return
        self._usages[choice] = event.usage
        usage = usage_of([event.usage]) if self._shape.continuous_usage else None
        out.append(self._chunk(choice, "", usage=usage, **reason_of(event)))
        if len(self._usages) < len(self._choices):
            return
        if self._shape.include_usage:
            usages = [self._usages[index] for index in range(len(self._choices))]
            total = usage_of(usages, self._shape.prompts)
            out.append(self._head + b'],"usage":' + _encode(total) + b"}\n\n")
        out.append(DONE)

    def _chunk(self, choice: int, text: str, *, usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
        document = {"index": choice, "text": text, "logprobs": None, "finish_reason": None, **fields}
        tail = self._end_tail if usage is None else b'],"usage":' + _encode(usage) + b"}\n\n"
        return self._head + _encode(document) + tail

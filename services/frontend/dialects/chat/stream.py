"""A turn, or several side by side, as the chunks of Chat Completions (apis.md C.3).

    start                                           role chunk of every choice
    Delta "Let me look." of reasoning               delta.reasoning_content
    BlockStop of reasoning                          nothing [, reasoning_dispatch]
    BlockStart tool_use name=Read                   delta.tool_calls[{index,id,type,function{name,arguments:""}}]
    Delta '{"file_path": "/a'                       delta.tool_calls[{index,function{arguments}}]
    BlockStop complete                              nothing [, tool_call_dispatch]
    Finish                                          delta {} with finish_reason; after the last choice usage and [DONE]

A chunk is spliced from bytes that were made once and the encoded text. Ids, names and roles are said once, since the
Python SDK concatenates what is repeated.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.errors import ErrorInfo
from schemas.events import BlockStart, BlockStop, Delta, Finish, Prepared, TokenLogprob, TurnEvent, Usage
from services.frontend.dialects.base import Reply, failure_of
from services.frontend.dialects.chat.calls import CallWriter
from services.frontend.dialects.chat.logprobs import content_logprobs
from services.frontend.dialects.chat.seals import SealList
from services.frontend.dialects.chat.shape import Shape
from services.frontend.dialects.openai_ending import DONE, error_chunk, first_usage, reason_of, usage_of

THINK = ("<think>\n", "\n</think>\n\n")
"""Around reasoning that is told in the content."""

_encode = msgspec.json.Encoder().encode
_CONTENT = b'{"content":'


class ChatStream:
    """Renders one answer."""

    __slots__ = (
        "_choices",
        "_head",
        "_shape",
        "_tail",
        "_usages",
    )

    def __init__(self, reply: Reply, shape: Shape, choices: int = 1) -> None:
        self._shape = shape
        head: dict[str, Any] = {
            "id": f"chatcmpl-{reply.turn}",
            "object": "chat.completion.chunk",
            "created": reply.created,
            "model": reply.model,
            "system_fingerprint": shape.fingerprint,
        }
        if shape.service_tier is not None:
            head["service_tier"] = shape.service_tier
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if shape.include_usage else b"]}\n\n"
        self._choices = [_Choice(reply, shape, index, self._head, self._tail) for index in range(choices)]
        self._usages: dict[int, Usage] = {}

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """The role chunk of every choice."""
        role = b'{"role":"assistant","content":"","refusal":null}'
        usage = first_usage(prepared[:1]) if self._shape.continuous_usage else None
        return b"".join(choice.chunk(role, usage=usage) for choice in self._choices)

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next chunks of a choice. Deltas that came together leave together, as one."""
        rendered = self._choices[choice]
        if rendered.plain is not None and len(events) == 1 and type(first := events[0]) is Delta and first.text:
            head, tail = rendered.plain
            return head + _encode(first.text) + tail
        out: list[bytes] = []
        texts: list[str] = []
        tokens: list[TokenLogprob] = []
        for event in events:
            if isinstance(event, Delta):
                texts.append(event.text)
                if event.logprobs:
                    tokens += event.logprobs
                continue
            if texts:
                rendered.delta("".join(texts), tokens, out)
                texts.clear()
                tokens = []
            if isinstance(event, BlockStart):
                rendered.begin(event, out)
            elif isinstance(event, BlockStop):
                rendered.stop(event, out)
            else:
                self._end(event, choice, out)
        if texts:
            rendered.delta("".join(texts), tokens, out)
        return b"".join(out)

    def error(self, info: ErrorInfo) -> bytes:
        """The error chunk; nothing follows it."""
        return error_chunk(info)

    def _end(self, event: TurnEvent, choice: int, out: list[bytes]) -> None:
        failure = failure_of(event)
        if failure is not None:
            out.append(error_chunk(failure))
            return
        if not isinstance(event, Finish):
            return
        self._usages[choice] = event.usage
        whole = len(self._usages) == len(self._choices)
        usage = usage_of([event.usage]) if self._shape.continuous_usage else None
        self._choices[choice].finish(event, out, usage)
        if not whole:
            return
        if self._shape.include_usage:
            total = usage_of([self._usages[index] for index in range(len(self._choices))])
            out.append(self._head + b'],"usage":' + _encode(total) + b"}\n\n")
        out.append(DONE)


class _Choice:
    """One choice of the answer."""

    __slots__ = (
        "_block",
        "_call",
        "_calls",
        "_complete",
        "_frame",
        "_head",
        "_index",
        "_reasoning_text",
        "_reply",
        "_seals",
        "_shape",
        "_tail",
        "_text",
        "_thinking",
        "_thought",
        "plain",
    )

    def __init__(self, reply: Reply, shape: Shape, index: int, head: bytes, tail: bytes) -> None:
        self._reply = reply
        self._shape = shape
        self._index = index
        self._frame = head, tail
        self._head = head + b'{"index":%d,"delta":' % index
        self._tail = b',"logprobs":null,"finish_reason":null}' + tail
        self._text = self._head + _CONTENT, b"}" + self._tail
        first = "reasoning" if shape.reasoning == "reasoning" else "reasoning_content"
        self._reasoning_text = self._head + b'{"%b":' % first.encode(), b"}" + self._tail
        self._block: BlockStart | None = None
        self._call: CallWriter | None = None
        self._calls = 0
        self._complete = 0
        self._thought: list[str] = []
        self._thinking = False
        self.plain: tuple[bytes, bytes] | None = None
        """What stands around the next delta of the open block, where it is but spliced in and changes nothing."""
        self._seals = SealList(reply.turn, index) if shape.details else None

    def chunk(self, delta: bytes, *, usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
        """One chunk. `fields` of the choice: `logprobs`, `finish_reason`, `stop_reason`."""
        if not fields and usage is None:
            return self._head + delta + self._tail
        ending = _encode({"logprobs": None, "finish_reason": None, **fields})
        tail = self._frame[1] if usage is None else b'],"usage":' + _encode(usage) + b"}\n\n"
        return self._head + delta + b"," + ending[1:] + tail

    def begin(self, event: BlockStart, out: list[bytes]) -> None:
        self._block = event
        self.plain = None
        self._thought.clear()
        self._thinking = False
        if event.kind != "tool_use" or (self._shape.legacy and self._calls):
            return
        self._call = CallWriter(
            event,
            self._calls,
            f"{self._reply.turn}c{self._index}b",
            freeform=event.name in self._shape.freeform,
            legacy=self._shape.legacy,
            keep=self._reply.dispatch,
        )
        self._calls += 1
        out.append(self.chunk(self._call.opening()))
        self._tell_seals(self._call.id, out)

    def delta(self, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
        block = self._block
        if block is None:
            return
        if block.kind == "text":
            if tokens and self._shape.logprobs:
                out.append(self.chunk(_CONTENT + _encode(text) + b"}", logprobs=content_logprobs(tokens)))
            elif text:
                head, tail = self._text
                out.append(head + _encode(text) + tail)
                self.plain = None if self._shape.logprobs else self._text
        elif block.kind == "tool_use":
            if self._call is not None:
                self._add(self._call.piece(text), out)
                around = self._call.plain()
                self.plain = around and (self._head + around[0], around[1] + self._tail)
        elif text:
            self._reasoning(text, out)

    def stop(self, event: BlockStop, out: list[bytes]) -> None:
        block, self._block = self._block, None
        self.plain = None
        if block is None:
            return
        if block.kind == "tool_use":
            self._stop_call(event, out)
        elif block.kind == "reasoning" and self._thinking:
            self._stop_reasoning(event, out)

    def finish(self, event: Finish, out: list[bytes], usage: dict[str, Any] | None) -> None:
        if self._block is not None:
            self.stop(BlockStop(self._block.block, complete=False), out)
        self._tell_seals(None, out)
        calls = ("function_call" if self._shape.legacy else "tool_calls") if self._complete else None
        out.append(self.chunk(b"{}", usage=usage, **reason_of(event, calls)))

    def _reasoning(self, text: str, out: list[bytes]) -> None:
        place = self._shape.reasoning
        opening, self._thinking = not self._thinking, True
        if self._reply.dispatch_reasoning:
            self._thought.append(text)
        if place == "omitted":
            return
        head, tail = self._reasoning_text
        if place == "inline":
            head, tail = self._text
            text = THINK[0] + text if opening else text
        encoded = _encode(text)
        if place == "both":
            tail = b',"reasoning":' + encoded + tail
        elif not self._reply.dispatch_reasoning:
            self.plain = head, tail
        out.append(head + encoded + tail)

    def _stop_reasoning(self, event: BlockStop, out: list[bytes]) -> None:
        if self._shape.reasoning == "inline":
            out.append(self.chunk(_CONTENT + _encode(THINK[1]) + b"}"))
        if self._seals is not None and event.seal and self._shape.reasoning != "omitted":
            self._seals.add(event.seal)
        if self._reply.dispatch_reasoning and self._shape.reasoning != "omitted":
            told = {"index": self._index, "reasoning_content": "".join(self._thought)}
            self._event("reasoning_dispatch", told, out)

    def _stop_call(self, event: BlockStop, out: list[bytes]) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        self._add(call.end(complete=event.complete), out)
        if not event.complete:
            return
        self._complete += 1
        if self._reply.dispatch and call.runnable():
            told = {"choice_index": self._index, "tool_call": {"index": call.index, **call.whole()}}
            self._event("tool_call_dispatch", told, out)

    def _tell_seals(self, call_id: str | None, out: list[bytes]) -> None:
        details = self._seals.take(call_id) if self._seals is not None else []
        if details:
            out.append(self.chunk(_encode({"reasoning_details": details})))

    def _add(self, delta: bytes, out: list[bytes]) -> None:
        if delta:
            out.append(self._head + delta + self._tail)

    def _event(self, name: str, told: dict[str, Any], out: list[bytes]) -> None:
        # A chunk without choices and with a member of its own: the one form that no client stumbles over.
        head, tail = self._frame
        member = b"],%b:%b" % (_encode(name), _encode(told))
        out.append(b"event: %b\n" % name.encode() + head + member + tail[1:])

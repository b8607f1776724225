"""Renders a turn, or several side by side, as chunks of Chat Completions, or as one document that merges them.

    start                                           role chunk of every choice
    Delta "Let me look." of reasoning               delta.reasoning_content
    BlockStop of reasoning                          nothing [, reasoning_dispatch]
    BlockStart tool_use name=Read                   delta.tool_calls[{index,id,type,function{name,arguments:""}}]
    Delta '{"file_path": "/a'                       delta.tool_calls[{index,function{arguments}}]
    BlockStop complete                              nothing [, tool_call_dispatch]
    Finish                                          delta {} with finish_reason; after the last choice usage and [DONE]

Ids, names and roles are sent once: the Python SDK concatenates repeated strings.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.errors import ErrorInfo
from schemas.events import (
    BlockStart,
    BlockStop,
    Dispatch,
    Finish,
    OutputTokens,
    Prepared,
    TokenLogprob,
)
from schemas.frames import unpack_ids
from services.frontend.apis.chat.calls import CallWriter
from services.frontend.apis.chat.history import DETAILS
from services.frontend.apis.shared.answers.documents import StreamCollector
from services.frontend.apis.shared.answers.turn_renderer import TurnRenderer
from services.frontend.apis.shared.openai.chunks import (
    ChunkShape,
    ChunkStream,
    UsageAnswer,
    answer_head,
    error_chunk,
    first_usage,
    logprob,
    merged_chunks,
    reason_of,
    usage_of,
)
from services.frontend.turns.interfaces import Reply

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning", "both"]
ReasoningPlace: TypeAlias = Literal["reasoning_content", "reasoning", "both", "inline", "omitted"]

_THINK = ("<think>\n", "\n</think>\n\n")
"""Around reasoning that is part of the content."""
_CONTENT = b'{"content":'
_UNKNOWN: dict[str, Any] = {"token": "", "logprob": None, "bytes": None, "top_logprobs": []}
"""In place of a token whose log probability the engine did not report."""
_encode = msgspec.json.Encoder().encode


class Settings(Struct, frozen=True):
    """The operator's settings."""

    reasoning_field: ReasoningField = "reasoning_content"
    """The field that holds reasoning."""
    reasoning_details: bool = False
    """Also send the seal of each reasoning block, in OpenRouter's `reasoning_details`."""
    fingerprint: str | None = None
    """`system_fingerprint` of every answer."""
    served: frozenset[str] = frozenset()
    """The kinds of hosted tools that this server runs."""


class Shape(ChunkShape, frozen=True, kw_only=True):
    """The form of one answer. `logprobs`: of the content; those of all tokens come with the ids that are requested."""

    reasoning: ReasoningPlace = "reasoning_content"
    """`inline`: in the content, in <think> tags (SGLang's `separate_reasoning: false`)."""
    details: bool = False
    legacy: bool = False
    """The call is in `function_call`."""
    freeform: frozenset[str] = frozenset()
    """Names of the freeform tools."""
    service_tier: str | None = None


class ChatStream(ChunkStream["_Choice"]):
    """Renders one answer."""

    def __init__(self, reply: Reply, shape: Shape, choices: int = 1) -> None:
        head = answer_head(f"chatcmpl-{reply.turn}", "chat.completion.chunk", reply, shape.fingerprint)
        if shape.service_tier is not None:
            head["service_tier"] = shape.service_tier
        super().__init__(head, choices, partial(_Choice, reply, shape), shape)
        self._continuous_usage = shape.continuous_usage

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """The role chunk of every choice."""
        role = b'{"role":"assistant","content":"","refusal":null}'
        usage = first_usage(prepared[:1]) if self._continuous_usage else None
        pairs = zip(self._choices, prepared, strict=True)
        return b"".join(choice.chunk(role, usage=usage, prompt=each.prompt_ids) for choice, each in pairs)


def chat_collector(reply: Reply, shape: Shape, choices: int = 1) -> StreamCollector:
    """Collects one answer."""
    reply = replace(reply, dispatch=False, dispatch_reasoning=False)
    return StreamCollector(ChatStream(reply, shape.whole(), choices), _document)


def _document(chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    document = merged_chunks("chat.completion", chunks)
    return document | {"choices": [_message_choice(choice) for choice in document["choices"]]}


def _message_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice with its merged deltas as the message."""
    message = choice.pop("delta")
    if not message["content"] and ("tool_calls" in message or "function_call" in message):
        message["content"] = None
    return {"index": choice.pop("index"), "message": message, **choice}


class _Choice(TurnRenderer):
    """Renders the chunks of one choice."""

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
        self._dispatched: Dispatch | None = None
        self._calls = 0
        self._complete = 0
        self._thought: list[str] = []
        self._thinking = False
        """The open block has sent reasoning."""
        self._seals: list[str] = []
        """Seals of reasoning since the last call."""
        self._seals_sent = 0

    def chunk(self, delta: bytes, *, usage: UsageAnswer | None = None, prompt: bytes = b"", **fields: Any) -> bytes:
        """One chunk. `fields` of the choice: `logprobs`, `finish_reason`, `stop_reason`, `token_ids`. `prompt`: its
        packed ids."""
        if not fields and usage is None and not prompt:
            return self._head + delta + self._tail
        ending = _encode({"logprobs": None, "finish_reason": None, **fields})
        tail = self._frame[1] if usage is None else b'],"usage":' + _encode(usage) + b"}\n\n"
        if prompt:
            tail = b'],"prompt_token_ids":' + _encode(unpack_ids(prompt)) + tail[1:]
        return self._head + delta + b"," + ending[1:] + tail

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
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
        )
        self._calls += 1
        self._dispatched = None
        out.append(self.chunk(self._call.opening()))
        self._send_seals(self._call.id, out)

    def _delta(self, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
        block = self._block
        if block is None or block.kind == "hosted":  # this API has no form for searches
            return
        if block.kind == "text":
            if tokens and self._shape.logprobs:
                out.append(self.chunk(_CONTENT + _encode(text) + b"}", logprobs=_logprobs(tokens)))
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

    def _dispatch(self, event: Dispatch) -> None:
        self._dispatched = event

    def _stop(self, event: BlockStop, out: list[bytes]) -> None:
        block, self._block = self._block, None
        self.plain = None
        if block is None:
            return
        if block.kind == "tool_use":
            self._stop_call(event, out)
        elif block.kind == "reasoning" and self._thinking:
            self._stop_reasoning(event, out)

    def _tokens(self, event: OutputTokens, out: list[bytes]) -> None:
        logprobs = None if event.logprobs is None else _logprobs(event.logprobs)
        out.append(self.chunk(b"{}", token_ids=event.ids, logprobs=logprobs))

    def error(self, info: ErrorInfo) -> bytes:
        return error_chunk(info)

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        if self._block is not None:
            self._stop(BlockStop(self._block.block, complete=False), out)
        self._send_seals(None, out)
        calls = ("function_call" if self._shape.legacy else "tool_calls") if self._complete else None
        usage = usage_of([event.usage]) if self._shape.continuous_usage else None
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
            text = _THINK[0] + text if opening else text
        encoded = _encode(text)
        if place == "both":
            tail = b',"reasoning":' + encoded + tail
        elif not self._reply.dispatch_reasoning:
            self.plain = head, tail
        out.append(head + encoded + tail)

    def _stop_reasoning(self, event: BlockStop, out: list[bytes]) -> None:
        if self._shape.reasoning == "omitted":
            return
        if self._shape.reasoning == "inline":
            out.append(self.chunk(_CONTENT + _encode(_THINK[1]) + b"}"))
        if self._shape.details and event.seal:
            self._seals.append(event.seal)
        if self._reply.dispatch_reasoning:
            reasoning = {"index": self._index, "reasoning_content": "".join(self._thought)}
            self._event("reasoning_dispatch", reasoning, out)

    def _stop_call(self, event: BlockStop, out: list[bytes]) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        self._add(call.end(complete=event.complete), out)
        if not event.complete:
            return
        self._complete += 1
        dispatched = self._dispatched if self._reply.dispatch else None
        whole = None if dispatched is None else call.whole(dispatched.arguments)
        if whole is not None:
            dispatch = {"choice_index": self._index, "tool_call": {"index": call.index, **whole}}
            self._event("tool_call_dispatch", dispatch, out)

    def _send_seals(self, call_id: str | None, out: list[bytes]) -> None:
        """Sends the seals since the last call in `reasoning_details`. `call_id` None: the turn is over.

        A client that sends them back restores the reasoning and its place: the id of an entry is that of the call that
        follows it, and clients keep such entries with their calls. The SDKs join entries by `index`, so each is sent
        once, whole.
        """
        if not self._seals:
            return
        entries = []
        for index, seal in enumerate(self._seals, self._seals_sent):
            entry_id = call_id or f"rs_{self._reply.turn}{self._index}{index}"
            entries.append(
                {"type": "reasoning.encrypted", "data": seal, "id": entry_id, "format": DETAILS, "index": index}
            )
        self._seals_sent += len(entries)
        self._seals.clear()
        out.append(self.chunk(_encode({"reasoning_details": entries})))

    def _add(self, delta: bytes, out: list[bytes]) -> None:
        if delta:
            out.append(self._head + delta + self._tail)

    def _event(self, name: str, content: dict[str, Any], out: list[bytes]) -> None:
        # A chunk without choices and with a member of its own: the only form that every client ignores.
        head, tail = self._frame
        member = b"],%b:%b" % (_encode(name), _encode(content))
        out.append(b"event: %b\n" % name.encode() + head + member + tail[1:])


def _logprobs(tokens: Sequence[TokenLogprob | None]) -> dict[str, Any]:
    return {"content": [_UNKNOWN if token is None else logprob(token) for token in tokens], "refusal": None}

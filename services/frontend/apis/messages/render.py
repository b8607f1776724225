"""Renders a turn as the event stream of the Messages API.

    BlockStart reasoning                nothing yet
    Delta "Let me look."                content_block_start thinking, ping (the first time),
                                        thinking_delta
    BlockStop seal=…                    signature_delta, content_block_stop [, reasoning_dispatch]
    BlockStart tool_use name=Read       content_block_start tool_use, input_json_delta ""
    Delta '{"file_path": "/a'           input_json_delta
    BlockStop complete                  content_block_stop [, tool_call_dispatch]
    Finish                              message_delta, message_stop

A text or thinking block opens with its first character, so none is ever empty; the indices that the
client sees are counted here and have no gaps. Agents start a tool at its content_block_stop, while
the stream continues.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import asdict, replace
from typing_extensions import override

from schemas.errors import ErrorInfo
from schemas.events import (
    BlockStart,
    BlockStop,
    Dispatch,
    Finish,
    FinishReason,
    HostedResults,
    OutputTokens,
    Prepared,
    PromptComparison,
    TokenLogprob,
    TurnEvent,
    Usage,
    failure_of,
)
from services.frontend.apis.messages import wire_answers, wire_events
from services.frontend.apis.messages.compaction import AnswerCompaction, block_events, summary_of
from services.frontend.apis.messages.errors import AnthropicError, error_document
from services.frontend.apis.messages.hosted import DIRECT, hosted_id, result_block
from services.frontend.apis.messages.summary import SummaryRequest
from services.frontend.apis.messages.wire import UNSEALED
from services.frontend.apis.shared.decode import is_json, one_line
from services.frontend.apis.shared.turn_renderer import Plain, TokenReport, TurnRenderer
from services.frontend.turns.compaction import summary_text
from services.frontend.turns.interfaces import Renderer, RenderInfo

COUNT_EVERY = 16
"""Tokens of an omitted thought after which the client gets their number."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_WEB = ("web_search", "web_fetch")
_encode = msgspec.json.Encoder().encode
_REASONS: dict[FinishReason, wire_answers.StopReason] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.PAUSE: "pause_turn",
}

_MISS_REASONS = {
    "model": "model_changed",
    "system": "system_changed",
    "tools": "tools_changed",
    "messages": "messages_changed",
    "history": "messages_changed",
    "deferred": "tools_changed",
}
"""Parts of a request, as in `PromptComparison.changed`."""

_NAMES: dict[type, bytes] = {
    kind: str(kind.__struct_config__.tag).encode() for kind in get_args(wire_events.Event)
} | {
    wire_events.MessagesToolCallDispatch: b"tool_call_dispatch",
    wire_events.MessagesReasoningDispatch: b"reasoning_dispatch",
    AnthropicError: b"error",
}


def message_id(turn_id: str) -> str:
    """The id of the message that a turn writes."""
    return f"msg_{turn_id}"


class OpenBlock:
    """The block that the turn writes, and what the client has of it."""

    def __init__(self, start: BlockStart, index: int, *, counts_tokens: bool) -> None:
        self.start = start
        self.index = index
        """The block's number in the answer."""
        self.counts_tokens = counts_tokens
        """Deltas of a thought have a number of tokens."""
        self.kind = start.kind
        self.is_announced = False
        """Whether the client has its start."""
        self.is_started = False
        """Whether the client has some of its text."""
        self.texts: list[str] = []
        """The text of reasoning that will be sent again whole."""
        self.call: Dispatch | None = None
        """The block as a complete call."""
        self.counted = 0
        """Tokens of an omitted thought that were reported."""
        self.uncounted = 0
        """At least the tokens of an omitted thought that were not reported."""

    @property
    def is_thought(self) -> bool:
        """Whether the block is reasoning."""
        return self.kind == "reasoning"

    def piece(self, text: str) -> wire_events.ContentBlockDelta:
        """A delta of the block. Encoded, its text is between the bytes of `plain`."""
        delta: wire_events.BlockDelta
        if self.kind == "text":
            delta = wire_events.MessagesTextDelta(text)
        elif self.is_thought:
            delta = wire_events.ThinkingDelta(text, None if self.counts_tokens else UNSET)
        else:
            delta = wire_events.InputJsonDelta(text)
        return wire_events.ContentBlockDelta(self.index, delta)

    def plain(self) -> Plain:
        """The bytes around the text of every delta."""
        before, _, after = _frame(self.piece("")).partition(b'""')
        return before, after


class MessagesStream(TurnRenderer[wire_events.Event], Renderer):
    """Renders one turn."""

    def __init__(
        self,
        answer: RenderInfo,
        *,
        omit_thinking: bool = False,
        count_thinking: bool = False,
        applied_edits: list[dict[str, Any]] | None = None,
        compaction: AnswerCompaction | None = None,
        compare: str | None = None,
    ) -> None:
        """`count_thinking`: the beta `thinking-token-count`. `applied_edits`: None where the
        request has no `context_management`. `compaction`: the compaction at the beginning of the
        answer. `compare`: as in `Client`."""
        self._answer = answer
        self._omit_thinking = omit_thinking
        self._counts = count_thinking
        self._applied_edits = applied_edits
        self._compaction = compaction
        self._compare = compare
        self._block: OpenBlock | None = None
        self._blocks = 0
        """Blocks of the answer so far."""
        self._calls = 0
        """Complete calls so far."""
        self._pinged = False
        self._ids = TokenReport()
        self._hosted_uses: Counter[str] = Counter()
        """Searches and fetches that succeeded, by kind."""
        self._has_hosted_results = False
        """Whether a tool ran here, with success or not: only then are they reported. The API does
        not count searches of tools."""

    @override
    def start(self, prepared: Sequence[Prepared]) -> bytes:
        return self.encode(self.opening(prepared))

    def opening(self, prepared: Sequence[Prepared]) -> wire_events.Events:
        """`message_start`, with the exact size of the prompt and the part expected in the KV
        cache."""
        first = prepared[0]
        self._ids.start(first)
        message = wire_answers.StartedAnswer(
            id=message_id(self._answer.turn),
            model=self._answer.model,
            content=[],
            usage=_first_usage(first),
            **self._ids.prompt(),
        )
        if self._compare is not None:
            message.diagnostics = diagnostics(self._compare, first.comparison)
        return [wire_events.MessageStart(message), *self._compaction_block()]

    def error(self, info: ErrorInfo) -> bytes:
        """The `error` event; nothing follows it."""
        return self.encode([error_document(info, self._answer.request_id)])

    @override
    def encode(self, events: Sequence[wire_events.Event]) -> bytes:
        return b"".join(map(_frame, events))

    def _fail(self, info: ErrorInfo, out: wire_events.Events) -> None:
        out.append(error_document(info, self._answer.request_id))

    def _compaction_block(self) -> wire_events.Events:
        """The block of the compaction, if there is one."""
        if self._compaction is None:
            return []
        self._blocks += 1
        return block_events(self._compaction)

    def _start(self, event: BlockStart, out: wire_events.Events) -> None:
        self._block = block = OpenBlock(event, self._blocks, counts_tokens=self._counts)
        self.plain = None
        if event.kind in ("tool_use", "hosted"):
            self._announce(block, _tool_use(event, self._answer), out)
            out.append(block.piece(""))

    def _announce(
        self, block: OpenBlock, content: wire_answers.AnswerContent, out: wire_events.Events
    ) -> None:
        """Sends the start of a block."""
        block.is_announced = True
        self._blocks += 1
        out.append(wire_events.ContentBlockStart(block.index, content))
        if not self._pinged:
            self._pinged = True
            out.append(wire_events.Ping())

    def _delta(self, text: str, tokens: list[TokenLogprob], out: wire_events.Events) -> None:
        block = self._block
        if block is None or not text:
            return
        if not block.is_announced:
            self._announce(block, _empty_content(block), out)
        if block.is_thought and self._omit_thinking:
            self._count_piece(block, out)
            return

        if block.is_thought and self._answer.dispatch_reasoning:
            block.texts.append(text)
            self.plain = None
        else:
            self.plain = block.plain()
        block.is_started = True
        out.append(block.piece(text))

    def _count_piece(self, block: OpenBlock, out: wire_events.Events) -> None:
        """Counts a delta of an omitted thought, which has a token or more."""
        block.uncounted += 1
        if block.uncounted == COUNT_EVERY:
            self._report_tokens(block, COUNT_EVERY, out)

    def _report_tokens(self, block: OpenBlock, tokens: int, out: wire_events.Events) -> None:
        """Reports further tokens of a thought, if the client asked for it."""
        if self._counts and tokens > 0:
            block.counted += tokens
            block.uncounted = 0
            delta = wire_events.ThinkingDelta("", tokens)
            out.append(wire_events.ContentBlockDelta(block.index, delta))

    def _dispatch(self, event: Dispatch) -> None:
        if self._block is not None:
            self._block.call = event

    def _stop(self, event: BlockStop, out: wire_events.Events) -> None:
        block = self._block
        self._block = None
        self.plain = None
        if block is None or not block.is_announced:
            return
        if block.is_thought:
            if self._omit_thinking:
                self._report_tokens(block, event.tokens - block.counted, out)
            signature = wire_events.SignatureDelta(event.seal or UNSEALED)
            out.append(wire_events.ContentBlockDelta(block.index, signature))
        if block.kind == "tool_use" and not event.complete and not block.is_started:
            # Clients read empty arguments as {} and run the call; they never run the beginning of
            # an object.
            out.append(block.piece("{"))
        out.append(wire_events.ContentBlockStop(block.index))

        if event.complete:
            if block.kind == "tool_use":
                self._calls += 1
            self._send_dispatch(block, event.seal, out)

    def _send_dispatch(self, block: OpenBlock, seal: str | None, out: wire_events.Events) -> None:
        """Sends the whole block in an event of its own, if a client or an operator requested it."""
        if block.is_thought:
            if self._answer.dispatch_reasoning:
                thought = wire_answers.ThinkingContent("".join(block.texts), seal or UNSEALED)
                out.append(wire_events.MessagesReasoningDispatch(_with_index(block, thought)))
        elif block.call is not None and self._answer.dispatch:
            arguments = block.call.arguments or "{}"
            if is_json(arguments, dict[str, Raw]):
                data = one_line(arguments.encode())
                call = replace(_tool_use(block.start, self._answer), input=data)
                out.append(wire_events.MessagesToolCallDispatch(_with_index(block, call)))

    def _tokens(self, event: OutputTokens, out: wire_events.Events) -> None:
        self._ids.add(event)

    def _results(self, event: HostedResults, out: wire_events.Events) -> None:
        for result in event.results:
            self._has_hosted_results = True
            index = self._blocks
            self._blocks += 1
            if result.error is None:
                self._hosted_uses[result.kind] += 1
            out.append(wire_events.ContentBlockStart(index, result_block(result)))
            out.append(wire_events.ContentBlockStop(index))

    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        if self._block is not None:
            self._stop(BlockStop(self._block.start.block, complete=False), out)
        usage = _last_usage(event.usage)
        if self._has_hosted_results:
            usage.server_tool_use = {f"{kind}_requests": self._hosted_uses[kind] for kind in _WEB}
        if self._compaction is not None:
            usage.iterations = _iterations(compaction=self._compaction.usage, message=event.usage)
        stop = _stop(event, self._calls)
        out += self._last(wire_events.MessagesMessageDelta(stop, usage, **self._ids.output()))

    def _last(self, end: wire_events.MessagesMessageDelta) -> wire_events.Events:
        """The last events of a message."""
        if self._applied_edits is not None:
            end.context_management = wire_answers.AppliedEdits(self._applied_edits)
        return [end, wire_events.MessageStop()]


class CompactionStream(MessagesStream):
    """Renders a turn that writes a summary as a message with only the compaction, for
    `pause_after_compaction`."""

    def __init__(self, answer: RenderInfo, **options: Any) -> None:
        super().__init__(answer, **options)
        self._events: list[TurnEvent] = []

    @override
    def api_events(self, events: Sequence[TurnEvent]) -> wire_events.Events:
        """Returns no events before the end of the turn."""
        self._events += events
        last = events[-1]
        failure = failure_of(last)
        if failure is not None:
            return [error_document(failure, self._answer.request_id)]
        if not isinstance(last, Finish):
            return []
        usage = _last_usage(Usage())
        usage.iterations = _iterations(compaction=last.usage)
        content = self._summary(self._events, last)
        end = wire_events.MessagesMessageDelta(self._reason(last), usage)
        return [*content, *self._last(end)]

    def _summary(self, events: Sequence[TurnEvent], _finish: Finish) -> wire_events.Events:
        """The block with the summary."""
        self._compaction = summary_of(events)
        return self._compaction_block()

    def _reason(self, _finish: Finish) -> wire_events.Stop:
        return wire_events.Stop("compaction", None)


class SummaryStream(CompactionStream):
    """Renders a turn that writes a summary as the answer to a request with `compaction`: the block
    is whole in its first event. A summary that was cut off, or is empty, leaves no content."""

    def __init__(self, answer: RenderInfo, request: SummaryRequest) -> None:
        super().__init__(answer)
        self._request = request
        self._text = ""

    @override
    def _summary(self, events: Sequence[TurnEvent], finish: Finish) -> wire_events.Events:
        if finish.reason is FinishReason.STOP:
            self._text = summary_text(events)
        if not self._text:
            return []
        block = self._request.block(self._text)
        return [wire_events.ContentBlockStart(0, block), wire_events.ContentBlockStop(0)]

    @override
    def _reason(self, finish: Finish) -> wire_events.Stop:
        if self._text:
            return super()._reason(finish)
        return _stop(finish, 0)


def _frame(event: wire_events.Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (_NAMES[type(event)], _encode(event))


def _stop(finish: Finish, complete_calls: int) -> wire_events.Stop:
    """The stop reason. A turn that was cut off after a complete call has `max_tokens`, as in the
    native API."""
    reason = _REASONS.get(finish.reason, "end_turn")
    if reason == "end_turn" and complete_calls:
        reason = "tool_use"
    return wire_events.Stop(reason, finish.stop_string if reason == "stop_sequence" else None)


def diagnostics(compare: str, comparison: PromptComparison | None) -> dict[str, Any] | None:
    """The answer's `diagnostics`, for a request that has them. None where nothing was missed, or
    nothing was to be compared. `compare`: as in `Client`."""
    if not compare:
        return None
    if comparison is None:
        return {"cache_miss_reason": {"type": "unavailable"}}
    if not comparison.earlier:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    if not comparison.missed:
        return None
    for part in comparison.changed:
        if part in _MISS_REASONS:
            reason = {
                "type": _MISS_REASONS[part],
                "cache_missed_input_tokens": comparison.missed,
            }
            return {"cache_miss_reason": reason}
    return {"cache_miss_reason": {"type": "unavailable"}}


def _first_usage(prepared: Prepared) -> wire_answers.MessagesUsage:
    """Usage before decoding begins. Its cached part is an estimate; the usage at the end of the
    stream is exact."""
    return wire_answers.MessagesUsage(
        input_tokens=prepared.prompt_tokens - prepared.cached,
        cache_read_input_tokens=prepared.cached,
        cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        output_tokens=1,
        service_tier="standard",
    )


def _usage(usage: Usage) -> wire_answers.MessagesUsage:
    return wire_answers.MessagesUsage(
        input_tokens=usage.prompt - usage.cached,
        cache_read_input_tokens=usage.cached,
        output_tokens=usage.output,
    )


def _last_usage(usage: Usage) -> wire_answers.MessagesUsage:
    """Usage of the whole turn."""
    return replace(_usage(usage), output_tokens_details={"thinking_tokens": usage.reasoning})


def _iterations(**usages: Usage) -> list[dict[str, Any]]:
    """Usage of several turns, by kind."""
    return [{"type": kind, **msgspec.to_builtins(_usage(usage))} for kind, usage in usages.items()]


def _with_index(
    block: OpenBlock, content: wire_answers.ThinkingContent | wire_answers.ToolUseContent
) -> dict[str, Any]:
    return {"index": block.index, "type": content.__struct_config__.tag, **asdict(content)}


def _empty_content(block: OpenBlock) -> wire_answers.AnswerContent:
    """The content of a block of text or of a thought that begins."""
    return (
        wire_answers.ThinkingContent("", "") if block.is_thought else wire_answers.TextContent("")
    )


def _tool_use(block: BlockStart, answer: RenderInfo) -> wire_answers.ToolUseContent:
    call_id = block.call_id or f"toolu_{answer.turn}{block.block}"
    name = block.name or ""
    if block.kind == "hosted":
        return wire_answers.ServerToolUseContent(hosted_id(call_id), name, Raw(b"{}"), DIRECT)
    return wire_answers.ToolUseContent(call_id, name, Raw(b"{}"), DIRECT)

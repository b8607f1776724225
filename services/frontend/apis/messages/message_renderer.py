"""The common part of the renderers of a message: its start, its end, errors, and the frames of its
events. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from schemas.errors import ErrorInfo
from schemas.events import Finish, FinishReason, Prepared, PromptComparison, Usage
from services.frontend.apis.messages import wire_answers, wire_events
from services.frontend.apis.messages.errors import AnthropicError, error_document
from services.frontend.apis.shared.turn_renderer import TokenReport, TurnRenderer, event_names
from services.frontend.turns.interfaces import Renderer, RenderInfo

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_encode = msgspec.json.Encoder().encode
_NAMES: dict[type, bytes] = event_names(wire_events.Event) | {
    wire_events.MessagesToolCallDispatch: b"tool_call_dispatch",
    wire_events.MessagesReasoningDispatch: b"reasoning_dispatch",
    AnthropicError: b"error",
}
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


def message_id(turn_id: str) -> str:
    """The id of the message that a turn writes."""
    return f"msg_{turn_id}"


class MessageRenderer(TurnRenderer[wire_events.Event], Renderer):
    """Renders a message, from its start to its end. A subclass renders what is between them."""

    def __init__(
        self,
        answer: RenderInfo,
        *,
        applied_edits: list[dict[str, Any]] | None = None,
        compare: str | None = None,
    ) -> None:
        """`applied_edits`: None where the request has no `context_management`. `compare`: as in
        `Client`."""
        self._answer = answer
        self._applied_edits = applied_edits
        self._compare = compare
        self._ids = TokenReport()

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
        return [wire_events.MessageStart(message)]

    @override
    def error(self, info: ErrorInfo) -> bytes:
        """The `error` event; nothing follows it."""
        return self.encode([error_document(info, self._answer.request_id)])

    @override
    def encode(self, events: Sequence[wire_events.Event]) -> bytes:
        return b"".join(map(encode_event, events))

    def _fail(self, info: ErrorInfo, out: wire_events.Events) -> None:
        out.append(error_document(info, self._answer.request_id))

    def _last(self, end: wire_events.MessagesMessageDelta) -> wire_events.Events:
        """The last events of a message."""
        if self._applied_edits is not None:
            end.context_management = wire_answers.AppliedEdits(self._applied_edits)
        return [end, wire_events.MessageStop()]


def encode_event(event: wire_events.Event) -> bytes:
    """The bytes of an event in the stream."""
    return b"event: %b\ndata: %b\n\n" % (_NAMES[type(event)], _encode(event))


def stop_of(finish: Finish, complete_calls: int) -> wire_events.Stop:
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


def last_usage(usage: Usage) -> wire_answers.MessagesUsage:
    """Usage of the whole turn."""
    return replace(_usage(usage), output_tokens_details={"thinking_tokens": usage.reasoning})


def iterations(**usages: Usage) -> list[dict[str, Any]]:
    """Usage of several turns, by kind."""
    return [{"type": kind, **msgspec.to_builtins(_usage(usage))} for kind, usage in usages.items()]

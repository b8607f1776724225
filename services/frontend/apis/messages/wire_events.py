"""The events of a stream of the Messages API as typed Structs."""

from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from services.frontend.apis.messages import wire_answers
from services.frontend.apis.messages.errors import AnthropicError


class MessageStart(Struct, tag="message_start"):
    """The answer begins; it has no content yet."""

    message: wire_answers.StartedAnswer


class ContentBlockStart(Struct, tag="content_block_start"):
    index: int
    content_block: wire_answers.AnswerContent


class MessagesTextDelta(Struct, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta"):
    """A piece of a thought. With the beta `thinking-token-count`: also a piece of the number of its
    tokens, where the text is omitted, else null."""

    thinking: str
    estimated_tokens: int | UnsetType | None = UNSET


class InputJsonDelta(Struct, tag="input_json_delta"):
    """A piece of a call's input."""

    partial_json: str


class SignatureDelta(Struct, tag="signature_delta"):
    """The signature of a thought."""

    signature: str


class CompactionDelta(Struct, tag="compaction_delta"):
    """The summary, whole."""

    content: str | None
    encrypted_content: str | None = None


BlockDelta: TypeAlias = (
    MessagesTextDelta | ThinkingDelta | InputJsonDelta | SignatureDelta | CompactionDelta
)


class ContentBlockDelta(Struct, tag="content_block_delta"):
    """More of the open block."""

    index: int
    delta: BlockDelta


class ContentBlockStop(Struct, tag="content_block_stop"):
    index: int


class Stop(Struct):
    """Why the turn ended."""

    stop_reason: wire_answers.StopReason
    stop_sequence: str | None
    stop_details: None = None


class MessagesMessageDelta(Struct, tag="message_delta"):
    """The end of the answer: the members of the message that are known only at the end."""

    delta: Stop
    usage: wire_answers.MessagesUsage
    token_ids: list[int] | UnsetType = UNSET
    token_logprobs: list[float | None] | UnsetType = UNSET
    context_management: wire_answers.AppliedEdits | UnsetType = UNSET


class MessageStop(Struct, tag="message_stop"):
    """Nothing follows."""


class Ping(Struct, tag="ping"):
    """A keep-alive event."""


class MessagesToolCallDispatch(Struct, tag="ping"):
    """A complete call once more, on request.

    A `ping` by its type, since the AI SDK fails on unknown types; other clients use the event's
    name.
    """

    tool_call_dispatch: dict[str, Any]


class MessagesReasoningDispatch(Struct, tag="ping"):
    """A finished thought once more, in the same form."""

    reasoning_dispatch: dict[str, Any]


Event: TypeAlias = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessagesMessageDelta
    | MessageStop
    | Ping
    | MessagesToolCallDispatch
    | MessagesReasoningDispatch
    | AnthropicError
)
Events: TypeAlias = list[Event]

"""Reads `compaction: {"type": "summarize"}` of a request: the answer is one `compaction` block, a
summary of the whole conversation. Pure.

Later requests send the block first, in place of the messages that it summarizes.
"""

from collections.abc import Sequence

from msgspec import Struct

from schemas.conversation import Call, Conversation, Message, Result
from schemas.errors import Invalid
from services.frontend.apis.messages import wire, wire_answers
from services.frontend.apis.messages.compaction.signature import change_documents, sign
from services.frontend.apis.messages.tools import ToolChange
from services.frontend.turns.compaction import request_summary


class SummaryRequest(Struct, frozen=True):
    """A request for a summary."""

    instructions: str | None
    tool_changes: list[ToolChange]
    """The changes that take the request's tools to those at the end of the conversation."""

    def conversation(self, conversation: Conversation) -> Conversation:
        """The conversation that asks for the summary."""
        return request_summary(conversation, self.instructions)

    def block(self, summary: str) -> wire_answers.CompactionContent:
        """The answer's only block."""
        return wire_answers.CompactionContent(
            summary,
            signature=sign(summary, self.tool_changes),
            tool_changes=change_documents(self.tool_changes),
        )


def read_summary_request(
    request: wire.MessagesBody, conversation: Conversation, tool_changes: list[ToolChange]
) -> SummaryRequest:
    """Reads the request for a summary. Raises Invalid.

    `request`: one with `compaction`. `tool_changes`: see `SummaryRequest`.
    """
    _check_fields(request)
    _check_messages(conversation)
    instructions = None
    if request.compaction is not None:
        instructions = (request.compaction.instructions or "").strip() or None
    return SummaryRequest(instructions, tool_changes)


def _check_fields(request: wire.MessagesBody) -> None:
    """Raises Invalid for fields that shape a reply, which the answer does not have."""
    choice = request.tool_choice
    output_format = request.output_format
    if request.output_config is not None and output_format is None:
        output_format = request.output_config.format
    refused = {
        "context_management": request.context_management is not None,
        "stop_sequences": bool(request.stop_sequences),
        "output_config.format": output_format is not None,
        "tool_choice": choice is not None and choice.type in ("any", "tool"),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise Invalid(f"{name}: cannot be used with `compaction`", param=name)


def _check_messages(conversation: Conversation) -> None:
    messages = [message for message in conversation.messages if message.role != "system"]
    if not messages:
        raise Invalid(
            "compaction: there are no `user` or `assistant` messages to summarize",
            param="messages",
            code="compaction_nothing_to_summarize",
        )
    if _has_open_call(messages):
        raise Invalid(
            "compaction: the last `assistant` turn has tool calls without results. Send the "
            "results, then compact.",
            param="messages",
            code="compaction_incomplete_turn",
        )


def _has_open_call(messages: Sequence[Message]) -> bool:
    """Whether the conversation ends in calls, or in the results of some of them."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.role != "tool":
            calls = {part.call_id for part in message.parts if isinstance(part, Call)}
            return not calls <= answered
        answered |= {part.call_id for part in message.parts if isinstance(part, Result)}
    return False

"""`compaction: {"type": "summarize"}`: the answer is one `compaction` block, a summary of the whole
conversation. Pure.

Later requests send the block first, in place of the messages that it summarizes. Its signature
shows whether a client has changed it. It needs no secret: clients may write any summary, as they
may write any message.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from schemas.conversation import Call, Conversation, Message, Result
from schemas.errors import Invalid
from services.frontend.apis.messages import wire, wire_answers
from services.frontend.apis.messages.tools import ToolChange
from services.frontend.turns.compaction import request_summary

_SIGNED = "turnwire.1."
_DIGEST_BYTES = 16
_encode = msgspec.json.Encoder(order="sorted").encode


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
        changes = list(map(_change_document, self.tool_changes))
        signature = _sign(summary, self.tool_changes)
        return wire_answers.CompactionContent(summary, signature=signature, tool_changes=changes)


class LocatedBlock(Struct, frozen=True):
    """A compaction block of a request, and its place."""

    field_path: str
    is_first: bool
    """Whether it is the first block of the conversation."""
    block: wire.CompactionBlock


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


def check_blocks(blocks: Sequence[LocatedBlock], *, has_compact_edit: bool) -> None:
    """Checks the compaction blocks of a conversation. Raises Invalid.

    A signed block must be the only one, and the first block of all. A block of another server is
    only text, whatever its signature.
    """
    signed = [located for located in blocks if located.block.signature]
    if not signed:
        return
    first = signed[0]
    if len(blocks) > 1:
        raise _invalid(
            first,
            "`messages` holds more than one `compaction` block. Send only the newest.",
            "compaction_block_ambiguous",
        )
    if not first.is_first:
        raise _invalid(
            first,
            "a signed `compaction` block must be the first block of the conversation. Remove the "
            "messages that it summarizes.",
            "compaction_block_misplaced",
        )
    if has_compact_edit:
        raise Invalid(
            "context_management.edits: a compaction edit cannot be used with a signed `compaction` "
            "block",
            param="context_management.edits",
        )
    _check_signature(first)


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


def _name(change: ToolChange) -> str | None:
    """The name of the tool that a change is of; None for one of an MCP server."""
    tool = change.tool
    if isinstance(tool, wire.ToolDefinition):
        return tool.definition.name or None
    if isinstance(tool, wire.NamedTool):
        return tool.name
    return None


def _change_document(change: ToolChange) -> dict[str, Any]:
    tool = change.tool
    document: dict[str, Any] = {"type": tool.__struct_config__.tag}
    if isinstance(tool, wire.ToolDefinition):
        members = asdict(tool.definition).items()
        document["definition"] = {
            name: value for name, value in members if value is not None and name != "cache_control"
        }
    else:
        document["name"] = _name(change)
    return {"type": change.__struct_config__.tag, "tool": document}


def _sign(summary: str, changes: Sequence[ToolChange]) -> str:
    """The signature of a block: digests of its two parts, and one of them both."""
    parts = _digest(summary.encode()) + _digest(_encode(list(map(_change_document, changes))))
    return _SIGNED + parts + _digest(parts.encode())


def _check_signature(located: LocatedBlock) -> None:
    """Raises Invalid for a block of this server that was changed."""
    block = located.block
    signature = block.signature or ""
    if not signature.startswith(_SIGNED):
        return
    expected = _sign(block.content or "", block.tool_changes or [])
    if signature == expected:
        return
    length = 2 * _DIGEST_BYTES
    parts = signature.removeprefix(_SIGNED)
    if parts[2 * length :] != _digest(parts[: 2 * length].encode()):
        raise _invalid(located, "its signature is invalid", "compaction_signature_invalid")
    if not expected.startswith(_SIGNED + parts[:length]):
        raise _invalid(located, "its content was changed", "compaction_content_mismatch")
    raise _invalid(located, "its tool_changes were changed", "compaction_tool_changes_mismatch")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _invalid(located: LocatedBlock, reason: str, code: str) -> Invalid:
    field_path = located.field_path
    return Invalid(f"{field_path}: `compaction` block: {reason}", param=field_path, code=code)

"""Signs the `compaction` block of an answer, and checks such blocks in requests. Pure.

The signature shows whether a client has changed the block. It needs no secret: clients may write
any summary, as they may write any message.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from schemas.errors import Invalid
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.tools import ToolChange

_SIGNED = "turnwire.1."
_DIGEST_BYTES = 16
_encode = msgspec.json.Encoder(order="sorted").encode


class LocatedBlock(Struct, frozen=True):
    """A compaction block of a request, and its place."""

    field_path: str
    is_first: bool
    """Whether it is the first block of the conversation."""
    block: wire.CompactionBlock


def sign(summary: str, changes: Sequence[ToolChange]) -> str:
    """The signature of a block: digests of its two parts, and one of them both."""
    parts = _digest(summary.encode()) + _digest(_encode(change_documents(changes)))
    return _SIGNED + parts + _digest(parts.encode())


def change_documents(changes: Sequence[ToolChange]) -> list[dict[str, Any]]:
    """The changes of tools as members of a block."""
    return list(map(_change_document, changes))


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


def _check_signature(located: LocatedBlock) -> None:
    """Raises Invalid for a block of this server that was changed."""
    block = located.block
    signature = block.signature or ""
    if not signature.startswith(_SIGNED):
        return
    expected = sign(block.content or "", block.tool_changes or [])
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

"""Blocks of tools that another server ran (web search, code execution, MCP …), as text of the history.

A session that began elsewhere brings them along. The model here has no such tools, but what they found is what the
rest of the conversation is about.
"""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.dialects.messages.content import raw_text
from services.frontend.dialects.messages.wire import HostedBlock, HostedUse

_OPAQUE = frozenset({"encrypted_content", "encrypted_index", "encrypted_stdout", "page_age", "data"})


def hosted_text(block: HostedBlock) -> str:
    """One line for a call; for a result its readable content, without what only the other server can read.

    Raises Invalid for content that is nested too deeply.
    """
    if isinstance(block, HostedUse):
        return f"[{block.name or 'tool'} {raw_text(block.input)}]"
    tag = str(block.__struct_config__.tag)
    try:
        return f"[{tag.removesuffix('_tool_result')} result]\n{_readable(block.content)}"
    except RecursionError:
        raise Invalid(f"`{tag}` block: its content is nested too deeply") from None


def _readable(content: Raw) -> str:
    value = msgspec.json.decode(content)
    if isinstance(value, str):
        return value
    return "\n".join(_lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [line for item in value for line in _lines(item)]
    if isinstance(value, dict):
        nested = [item for item in value.values() if isinstance(item, dict | list)]
        flat = " ".join(str(item) for key, item in value.items() if _shown(key, item))
        return ([flat] if flat else []) + [line for item in nested for line in _lines(item)]
    return [] if value is None else [str(value)]


def _shown(key: str, value: Any) -> bool:
    return key != "type" and key not in _OPAQUE and isinstance(value, str | int | float) and value != ""

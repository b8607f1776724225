"""Items of tools that another server ran (web search, file search, code, MCP …), as text of the history.

A session that began elsewhere brings them along, and what they found is what the rest of it is about. Nothing of them
is refused; what only that server can use (ids, blobs, pictures in base64) is left out.
"""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import Invalid

SPOKEN = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "computer_call",
        "image_generation_call",
        "code_interpreter_call",
        "mcp_call",
        "program",
        "program_output",
    }
)
"""Become text of the model's turn."""
SILENT = frozenset({"mcp_list_tools", "mcp_approval_request", "mcp_approval_response"})
"""Say nothing that a model needs."""

_ASKED = (
    "server_label",
    "name",
    "arguments",
    "action",
    "actions",
    "queries",
    "code",
    "revised_prompt",
)
_FOUND = ("results", "outputs", "output", "error")
_OPAQUE = frozenset({"type", "id", "url_citation", "file_id", "attributes", "score", "container_id", "fingerprint"})


def hosted_text(kind: str, item: Raw) -> str:
    """One line for what was asked, then what came of it. Raises Invalid for an item that is nested too deeply."""
    try:
        members: dict[str, Any] = msgspec.json.decode(item)
        asked = " ".join(line for key in _ASKED if key in members for line in _lines(members[key]))
        found = [line for key in _FOUND if key in members for line in _lines(members[key])]
        if kind == "program_output":
            found += _lines(members.get("result"))
    except RecursionError:
        raise Invalid(f"A `{kind}` item is nested too deeply.", param="input") from None
    return "\n".join([f"[{kind} {asked}]" if asked else f"[{kind}]", *found])


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [line for item in value for line in _lines(item)]
    if isinstance(value, dict):
        nested = [item for key, item in value.items() if isinstance(item, dict | list) and key not in _OPAQUE]
        flat = " ".join(str(item) for key, item in value.items() if _shown(key, item))
        return ([flat] if flat else []) + [line for item in nested for line in _lines(item)]
    return [] if value is None or value == "" else [str(value)]


def _shown(key: str, value: Any) -> bool:
    return key not in _OPAQUE and isinstance(value, str | int | float) and value != "" and not _is_blob(value)


def _is_blob(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("data:")

"""Converts items of tools that OpenAI's servers run (web search, code interpreter, MCP, …) into text of the history.

A session that began elsewhere brings them along, and refers to their results. None is refused; members which only those
servers can use (ids, opaque data, base64 images) are left out.
"""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import Invalid

AS_TEXT = frozenset(
    {"web_search_call", "file_search_call", "computer_call", "image_generation_call"}
    | {"code_interpreter_call", "mcp_call", "program", "program_output"}
)
"""Become text of the model's turn."""
IGNORED = frozenset({"mcp_list_tools", "mcp_approval_request", "mcp_approval_response"})
"""Have no content that a model needs."""

_INPUT = ("server_label", "name", "arguments", "action", "actions", "queries", "code", "revised_prompt")
_OUTPUT = ("results", "outputs", "output", "error")
_OPAQUE = frozenset({"type", "id", "url_citation", "file_id", "attributes", "score", "container_id", "fingerprint"})


def hosted_text(kind: str, item: Raw) -> str:
    """One line for the tool's input, then its output. Raises Invalid for an item that is nested too deeply."""
    try:
        members: dict[str, Any] = msgspec.json.decode(item)
        given = " ".join(line for key in _INPUT if key in members for line in _lines(members[key]))
        found = [line for key in _OUTPUT if key in members for line in _lines(members[key])]
        if kind == "program_output":
            found += _lines(members.get("result"))
    except RecursionError:
        raise Invalid(f"A `{kind}` item is nested too deeply.", param="input") from None
    return "\n".join([f"[{kind} {given}]" if given else f"[{kind}]", *found])


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [line for item in value for line in _lines(item)]
    if isinstance(value, dict):
        nested = [item for key, item in value.items() if isinstance(item, dict | list) and key not in _OPAQUE]
        flat = " ".join(str(item) for key, item in value.items() if _shown(key, item))
        return ([flat] if flat else []) + [line for item in nested for line in _lines(item)]
    return [] if value is None or value == "" else [str(value)]


def _shown(key: str, value: Any) -> bool:
    if key in _OPAQUE or value == "" or not isinstance(value, str | int | float):
        return False
    return not (isinstance(value, str) and value.startswith("data:"))

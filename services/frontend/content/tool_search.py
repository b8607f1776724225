"""The limits of searches of tools, and their results as the model reads them."""

from collections.abc import Iterable
from typing import Final

from schemas.conversation import ResultPart, Text, ToolReference

_MAX_CHARS = {"tool_search_regex": 200, "tool_search_bm25": 500}
"""The longest pattern and query, as Anthropic's."""
TOO_MANY: Final = "too_many_requests"
"""The error code of a search after the last one that an answer may have."""


def refused_search(kind: str, argument: str) -> str | None:
    """Returns the error code of a search of tools that may not run; None if it may."""
    if 0 < len(argument) <= _MAX_CHARS[kind]:
        return None
    return "invalid_tool_input"


def found_tools(names: Iterable[str]) -> list[ResultPart]:
    """Returns the tools that a search found, by their names as the model sees them, for a
    result."""
    parts: list[ResultPart] = [ToolReference(name) for name in names]
    return parts or [Text("No tools were found.")]

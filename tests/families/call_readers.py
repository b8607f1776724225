"""Readers of calls over the text after an opener: what they make of it, however it is cut."""

from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families.grammar.call_marker import CallReader
from services.families.grammar.turn_state import CallOpener
from tests.kit.parser_cases import Block, read_body

POINT = {"type": "object", "properties": {"x": {"type": "number"}, "label": {"type": "string"}}}
SCHEMA = {
    "$defs": {"Point": POINT},
    "properties": {
        "s": {"type": "string"},
        "t": {"type": "string"},
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "o": {"type": "object"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "nums": {"type": "array", "items": {"type": "number"}},
        "point": {"$ref": "#/$defs/Point"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
    },
}
TOOLS = [ToolSpec("f", schema=SCHEMA), ToolSpec("g"), ToolSpec("mcp.read")]
Calls = list[tuple[str, Any]]
CUT = ("f", None)
"""A call that never completes."""
ANYWAY = (FinishReason.LENGTH, FinishReason.STOP)


def f(**arguments: Any) -> tuple[str, Any]:
    return "f", arguments


def read_blocks(
    reader: CallReader, opener: CallOpener, text: str, reason: FinishReason
) -> tuple[list[Block], str, str | None]:
    """The blocks, the text left and the text given back; the same however the text is cut."""
    results = [read_body(reader, text, TOOLS, opener, size, reason) for size in (1, 3, 1000)]
    assert results[0] == results[1] == results[2]
    return results[0]


def read(
    reader: CallReader, opener: CallOpener, text: str, reason: FinishReason = FinishReason.STOP
) -> tuple[Calls, str, str | None]:
    """Names with arguments, the text left and the text given back."""
    blocks, rest, back = read_blocks(reader, opener, text, reason)
    return [(block["name"], block.get("input")) for block in blocks], rest, back


def check_given_back(reader: CallReader, opener: CallOpener, text: str) -> None:
    """The text is no call, and nothing of it is lost."""
    calls, rest, back = read(reader, opener, text)
    assert calls == []
    assert back is not None
    assert back + rest == opener.text + text

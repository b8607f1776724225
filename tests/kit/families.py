"""The families by what they can write, and how tests read a turn of theirs."""

import json
import re
from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import Family, families, open_parser
from services.families.grammar.markup import Markup
from tests.kit.parser_cases import Block, any_way, every_way

TOOLS = [
    ToolSpec(
        "run",
        schema={
            "properties": {
                "cmd": {"type": "string"},
                "t": {"type": "number"},
                "b": {"type": "boolean"},
            }
        },
    ),
    ToolSpec("ping", schema={"properties": {}}),
]
CALLING = [family for family in families().values() if family.style.call]
THINKING = [f for f in families().values() if f.think and f.name != "minimax_m2_append_think"]
PLAIN = [family for family in CALLING if not family.style.joint]
"""They write no headers between blocks."""
TAGGED = [family for family in families().values() if isinstance(family.grammar, Markup)]
UNMARKED = (
    "llama3_json",
    "pythonic",
    "xlam",
    "gigachat3",
    "granite_20b_fc",
    "minicpm5",
    "functionary",
    "rwkv",
    "cwm",
)
"""Nothing opens and closes a section of theirs."""
RUN = ("run", {"cmd": "grep -n \"tide\" 'log' | head -5", "t": 12.5, "b": False})
PING: tuple[str, dict[str, Any]] = ("ping", {})
QUOTES = {"gemma4": '<|"|>', "functiongemma": "<escape>"}
"""Tokens that stand for a quote in a string, so that a string cannot hold them."""
Said = tuple[str, Any]
"""A block: its kind and text, or the name and the arguments of a call. A call that never completes
has None for arguments."""


def text(value: str) -> Said:
    return "text", value


def thought(value: str) -> Said:
    return "reasoning", value


def written(family: Family, *blocks: Said) -> str:
    """The blocks as the family writes them, in its own order of markers."""
    parts = []
    for kind, value in blocks:
        if kind == "reasoning":
            parts.append(family.style.write_reasoning(value))
        elif kind == "text":
            parts.append(family.style.write_text(value))
        else:
            parts.append(family.style.write_call(kind, value))
    return family.style.joint.join(parts)


def read_exactly(
    family: Family | str, raw: str, reason: FinishReason = FinishReason.STOP, **options: Any
) -> list[Said]:
    """The blocks, with their white space; the same whole and cut in any way."""
    name = family if isinstance(family, str) else family.name
    options = {"tools": TOOLS, "in_reasoning": False, **options}
    return [
        (b["name"], b.get("input")) if b["type"] == "tool_use" else (b["type"], b["text"])
        for b in every_way(lambda: open_parser(name, **options), raw, reason, [any_way(raw)])
    ]


def read(
    family: Family | str, raw: str, reason: FinishReason = FinishReason.STOP, **options: Any
) -> list[Said]:
    """The blocks, without white space around their texts; the same whole and cut in any way."""
    return [
        (kind, value.strip() if isinstance(value, str) else value)
        for kind, value in read_exactly(family, raw, reason, **options)
    ]


def joined(blocks: list[Said]) -> list[Said]:
    """Neighbouring blocks of prose of one kind as one, without any white space."""
    found: list[Said] = []
    for kind, value in blocks:
        if kind in ("text", "reasoning"):
            value = "".join(value.split())
            if found and found[-1][0] == kind:
                value = found.pop()[1] + value
        found.append((kind, value))
    return found


def completed(blocks: list[Block]) -> list[Said]:
    """The calls that would be dispatched."""
    calls = [block for block in blocks if block["type"] == "tool_use" and block["complete"]]
    return [(block["name"], block["input"]) for block in calls]


def is_misread(family: Family, raw: str, blocks: list[Block], calls: list[Said]) -> bool:
    """Whether a call completes that is not one of these, in their order, and `raw` is not what the
    family writes for the blocks."""
    rest = iter(calls)
    if all(any(_same(family, call, other) for other in rest) for call in completed(blocks)):
        return False
    said = [
        (block["name"], block["input"])
        if block["type"] == "tool_use"
        else (block["type"], block["text"])
        for block in blocks
        if block["complete"]
    ]
    return _bare(family, written(family, *said)) != _bare(family, raw)


def _bare(family: Family, text: str) -> str:
    """The text without white space, with ordinary quotes."""
    return "".join(text.split()).replace(QUOTES.get(family.name, '"'), '"')


def _same(family: Family, call: Said, other: Said) -> bool:
    quote = json.dumps(QUOTES.get(family.name, '"'))[1:-1]
    return json.dumps(call) == json.dumps(other).replace(quote, '\\"')


def plain(marker: str) -> str:
    """A marker without its holes."""
    return re.sub(r"\{\w+\}", "", marker.replace("{word}", "invoke"))


def closers(family: Family) -> list[str]:
    """What closes calls and sections."""
    assert isinstance(family.grammar, Markup)
    return [plain(tail) for tail in family.grammar.tails]


def orphans(family: Family) -> list[str]:
    """Closers of calls, sections and thoughts."""
    assert isinstance(family.grammar, Markup)
    return [*closers(family), *(plain(closer) for _, closer in family.grammar.think)]


def empty_sections(family: Family) -> list[str]:
    """A turn's call, without what the section holds: all of it, or all but the brackets of the
    list."""
    front, _, back = family.style.call.partition("{arguments}")
    opener = re.match(
        r"<\|open\|>tools<\|sep\|>|\]<\]minimax\[>\[<[a-z_]+>|<\|action_start\|> <\|plugin\|>|<[^>]*>|\[TOOL_CALLS\]|functools",
        front,
    )
    if opener is None:
        return []
    assert isinstance(family.grammar, Markup)
    last = plain(family.grammar.tails[-1] if family.grammar.tails and back else "")
    closer = last if back.rstrip().endswith(last) else (closers(family) or [""])[0]
    closer = next((tail for tail in closers(family) if back.rstrip().endswith(tail)), closer)
    bodies = ("", "\n", "[]", "[ ]", "\n[]\n") if closer else ("[]", " []")
    return [opener[0] + body + closer for body in bodies]

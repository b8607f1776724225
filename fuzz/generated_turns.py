"""Generates turns with known blocks: reasoning, text and calls in any order, in the notation of a
family."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fuzz.cases import FAMILIES, Case
from fuzz.toolsets import of_the_vectors
from services.families import Family, families
from services.families.grammar.markup import Markup

STRINGS: Final = (
    *("plain", "", " lead and trail ", "line one\nline two\n", "\n\nstarts"),
    *("123", "true", "none", "-0.5e3", '{"a": 1}', "[1, 2]", "a < b && c > d"),
    *("quote \" and ' and \\ back\\n", "\\", '"', "}", "{", "a]}", "a=1, b=2"),
    *("<tool_call>", "</think>", "<think>", "<|im_", "</b>", "x</", "end with <"),
    *("end with \n", "\ttab", "é船🌊", 'def f(x):\n    return "<div>" + x[0]\n'),
)
PROSE: Final = (
    *("Look first.", "Two lines.\n\nAnd `code` with a < b.", "Is `x[0]` {ok}?"),
    *("A list:\n- one\n- two", "Done", "é船🌊", "Costs 5 < 6 > 4."),
    *('It said "no"; then: (stop).', "Use the tool_call tag.", "Ends in <"),
)
_CHANNELS: Final = {
    "gpt_oss": ("<|start|>assistant", "<|channel|>final<|message|>", "<|end|>"),
    "beam": ("<|start|>assistant", "<|channel|>final<|message|>", "<|end|>"),
    "muse_glimmer": ("<|start|>assistant", " to=user<|message|>", "<|eom|>"),
    "solar_open": ("<|begin|>assistant", "<|content|>", "<|end|>"),
    "inkling": ("<|message_model|>", "<|content_text|>", "<|end_message|>"),
}
"""The start of a further message, and the text before and after prose."""
_OWN_LINE: Final = frozenset({"llama3_json", "pythonic", "xlam", "llama4_pythonic", "gigachat3"})
"""Families without an opening marker of calls: a call begins a line."""
_ONE_ORDER: Final = frozenset({"kimi_k3"})
"""Families with a fixed order of the parts of a turn."""

Segment = tuple[str, str, Mapping[str, Any]]
"""(`reasoning` or `text`, its text, {}) or (`tool_use`, name, arguments)."""


@dataclass
class Choices:
    """Bytes as decisions; when they are used up, every decision is the first."""

    data: bytes
    at: int = 0

    def below(self, count: int) -> int:
        """A number from 0 up to `count`, without it."""
        byte = self.data[self.at] if self.at < len(self.data) else 0
        self.at += 1
        return byte % count

    def of(self, options: Any) -> Any:
        """One of `options`."""
        return options[self.below(len(options))]


def generated_turn(data: bytes) -> tuple[Case, list[Segment]]:
    """Decodes some bytes to a case and the blocks that it must have."""
    choose = Choices(data)
    family = families()[choose.of([name for name in FAMILIES if name not in _ONE_ORDER])]
    seed = choose.below(256)
    segments = _segments(choose, family)
    raw = _written(choose, family, segments)
    return Case(family.name, raw, of_the_vectors(), seed=seed), segments


def _segments(choose: Choices, family: Family) -> list[Segment]:
    segments: list[Segment] = []
    for _ in range(1 + choose.below(7)):
        last = segments[-1][0] if segments else "tool_use"
        kind = choose.of(("tool_use", "text", "reasoning", "tool_use"))
        if kind == "tool_use" and family.style.call:
            tool = choose.of(of_the_vectors())
            known = tool.schema.get("properties", {})
            chosen = {key: schema for key, schema in known.items() if choose.below(8)}
            arguments = {key: _value(choose, schema) for key, schema in chosen.items()}
            segments.append((kind, tool.name, arguments))
        elif _may_follow(kind, last) and (kind == "text" or _reasons(family)):
            segments.append((kind, choose.of(PROSE), {}))
    return segments


def _may_follow(kind: str, last: str) -> bool:
    """Reasoning opens at a boundary; two adjacent texts would be one block."""
    return last != "text" if kind == "text" else kind == "reasoning" and last == "tool_use"


def _reasons(family: Family) -> bool:
    """Whether the family's reasoning is parsed as such, and not left in its text."""
    grammar = family.grammar
    return bool(family.style.reasoning) and (not isinstance(grammar, Markup) or bool(grammar.think))


def _written(choose: Choices, family: Family, segments: list[Segment]) -> str:
    start, before, after = _CHANNELS.get(family.name, ("", "", ""))
    pieces: list[str] = []
    for kind, value, arguments in segments:
        if kind == "text":
            blank = "" if start else choose.of(("", "\n", "\n\n"))
            piece = before + value + blank + after
        elif kind == "reasoning":
            piece = family.style.write_reasoning(value)
        else:
            within = family.name in _OWN_LINE and pieces and not pieces[-1].endswith("\n")
            piece = "\n" if within else ""
            piece += family.style.write_call(value, arguments)
            piece += "" if start else choose.of(("", "\n"))
        pieces.append(piece if not pieces else start + piece)
    return "".join(pieces)


def _value(choose: Choices, schema: Mapping[str, Any]) -> Any:
    types = schema.get("type", "string")
    if "anyOf" in schema:
        return _value(choose, choose.of(schema["anyOf"]))
    if "enum" in schema:
        return choose.of(schema["enum"])
    kind = types if isinstance(types, str) else choose.of(types)
    if kind == "array":
        return [_value(choose, schema.get("items", {})) for _ in range(choose.below(4))]
    if kind == "object":
        properties = schema.get("properties")
        if properties is None:
            return choose.of(({}, {"a": 1}, {"k": "v", "n": [1, None, True]}))
        return {key: _value(choose, inner) for key, inner in properties.items() if choose.below(5)}
    scalars: dict[str, tuple[Any, ...]] = {
        "integer": (0, 1, -5, 42, 10**20),
        "number": (0.5, -1.25, 3, 1e10),
        "boolean": (True, False),
        "null": (None,),
    }
    return choose.of(scalars.get(kind, STRINGS))

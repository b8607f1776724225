"""Draws what agents and models write: texts, tools, calls, media, and the script of a model's turn. Pure."""

import json
from random import Random
from typing import Any

Json = dict[str, Any]

_WORDS = (
    "the file parser returns an empty list when config is missing build failed with exit code 2 see line 48 of "
    "server.py because naïve café größer 你好 世界 привет 🙂 👩‍💻 `ls -la` <b>tag</b> {brace} \"quoted\" back\\slash tab\there "
    "https://example.org/a?b=c&d user@host 3.14 -0 1e9 ### heading * bullet <|im_end|> <think> </think> </tool_call> end."
).split(" ")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF = "JVBERi0xLjQKJcOkw7zDtsOfCjEgMCBvYmoKPDwvVHlwZS9DYXRhbG9nPj4KZW5kb2JqCnRyYWlsZXIKPDw+PgolJUVPRg=="
_STRING, _NUMBER = {"type": "string"}, {"type": "number"}
TOOLS: list[tuple[str, str, Json]] = [
    ("run_shell", "Runs a command.", {"type": "object", "properties": {"cmd": _STRING, "timeout_s": _NUMBER}, "required": ["cmd"]}),
    ("read_file", "Reads a file\nin lines.", {"type": "object", "properties": {"path": _STRING, "from": {"type": "integer"}, "to": {"type": ["integer", "null"]}}}),
    ("edit", "", {"type": "object", "properties": {"path": _STRING, "edits": {"type": "array", "items": {"type": "object", "properties": {"old": _STRING, "new": _STRING}}}, "all": {"type": "boolean"}}, "additionalProperties": False}),
    ("mcp__search-web__find", "Finds “pages”.", {"type": "object", "properties": {"q": _STRING, "kind": {"enum": ["web", "news"]}, "opts": {"$ref": "#/$defs/o"}}, "$defs": {"o": {"type": "object"}}}),
    ("now", "Tells the time.", {"type": "object", "properties": {}}),
]  # fmt: skip


def words(rng: Random, low: int, high: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(rng.randint(low, high)))


def chosen(rng: Random, chance: float, **options: list[Any]) -> Json:
    """Each option with this chance, and one of its values."""
    return {name: rng.choice(values) for name, values in options.items() if rng.random() < chance}


def tools(rng: Random) -> list[tuple[str, str, Json]]:
    return rng.sample(TOOLS, rng.randint(1, len(TOOLS)))


def value(rng: Random, schema: Json) -> Any:
    """A value that fits the schema, most of the time."""
    kind = schema.get("type", "object")
    if rng.random() < 0.03:
        kind = rng.choice(["string", "integer", "boolean", "object"])
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if kind == "array":
        return [value(rng, schema.get("items", _STRING)) for _ in range(rng.randint(0, 3))]
    if kind == "object":
        return {k: value(rng, v) for k, v in schema.get("properties", {}).items() if rng.random() < 0.8}
    simple = {"string": words(rng, 0, 6), "number": rng.choice([1, 2.5, -3e9]), "boolean": rng.random() < 0.5}
    return simple.get(kind if isinstance(kind, str) else "", rng.randint(-5, 10**rng.randint(1, 12)))


def arguments(rng: Random, schema: Json) -> Json:
    """Arguments of a call."""
    return {name: value(rng, kind) for name, kind in schema.get("properties", {}).items() if rng.random() < 0.8}


def call_text(rng: Random, name: str, values: Json) -> str:
    """A call as the demo model writes it; one of twelve is ill-formed."""
    texts = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in values.items()}
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in texts.items())
    call = f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
    return call[: rng.randint(5, len(call))] if rng.random() < 0.08 else call


def output(rng: Random, offered: list[tuple[str, str, Json]], calls: bool) -> str:
    """The script of one turn: reasoning, text, calls."""
    text = words(rng, 1, 25).replace("</think>", "") if rng.random() < 0.8 else ""
    text = text + "\n</think>\n\n" if rng.random() < 0.9 else text
    text += words(rng, 0, 40)
    if rng.random() < 0.15:
        text += f"[[fill {rng.randint(1, 120)}]]"
    if rng.random() < 0.01:
        text += "[[fail the engine broke]]"
    if calls and offered:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            name, _, schema = rng.choice(offered)
            name = "unknown_tool" if rng.random() < 0.03 else name
            text += ("\n" + words(rng, 0, 5) if rng.random() < 0.2 else "\n") + call_text(rng, name, arguments(rng, schema))
    return text


def ask(rng: Random, offered: list[tuple[str, str, Json]], turns: int) -> str:
    """A user's text that scripts the next turns; rarely one for the rule-based agent."""
    if rng.random() < 0.1:
        return rng.choice(["Run `ls -la` please.", "Read the file src/a.py", "Answer with the word: BLUE", "Hello?"])
    scripts = [output(rng, offered, calls=n < turns - 1) for n in range(turns)]
    return words(rng, 0, 12) + "".join(f"[[say]]{script}[[/say]]" for script in scripts)

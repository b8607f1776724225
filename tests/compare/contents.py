"""Draws what agents and models write: texts, tools, calls, and the script of a model's turn. Pure
but for its table."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

Json = dict[str, Any]
Tool = tuple[str, str, Json]


@cache
def _table() -> str:
    return (Path(__file__).parent / "options.json").read_text()


def options(mark: str = "", tool: str = "none") -> Json:
    """The values of fields, by API, for a session and its first tool."""
    found: Json = json.loads(_table().replace("$mark", mark).replace("$tool", tool))
    return found


@cache
def _words() -> list[str]:
    words: str = options()["words"]
    return words.split(" ")


def words(rng: Random, low: int, high: int) -> str:
    """Between `low` and `high` words; some are markup."""
    return " ".join(rng.choice(_words()) for _ in range(rng.randint(low, high)))


def chosen(rng: Random, chance: float, choices: Json) -> Json:
    """Each field with this chance, and one of its values."""
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < chance}


def value(rng: Random, schema: Json) -> Any:
    """A value that fits the schema, most of the time."""
    kind = schema.get("type", "object")
    if rng.random() < 0.03:
        kind = rng.choice(["string", "integer", "boolean", "object"])
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if kind == "array":
        return [value(rng, schema.get("items", {})) for _ in range(rng.randint(0, 3))]
    if kind == "object":
        return arguments(rng, schema)
    simple = {
        "string": words(rng, 0, 6),
        "number": rng.choice([1, 2.5, -3e9]),
        "boolean": rng.random() < 0.5,
    }
    return simple.get(
        kind if isinstance(kind, str) else "", rng.randint(-5, 10 ** rng.randint(1, 12))
    )


def arguments(rng: Random, schema: Json) -> Json:
    """Arguments of a call."""
    return {
        name: value(rng, kind)
        for name, kind in schema.get("properties", {}).items()
        if rng.random() < 0.8
    }


def ask(rng: Random, tools: list[Tool], turns: int) -> str:
    """A user's text that scripts the next turns; rarely one for the rule-based agent."""
    if rng.random() < 0.1:
        return rng.choice(
            [
                "Run `ls -la` please.",
                "Read the file src/a.py",
                "Answer with the word: BLUE",
                "Hello?",
            ]
        )
    scripts = (_script(rng, tools if n < turns - 1 else []) for n in range(turns))
    return words(rng, 0, 12) + "".join(f"[[say]]{script}[[/say]]" for script in scripts)


def _script(rng: Random, tools: list[Tool]) -> str:
    """What the model writes in one turn: reasoning, text, calls."""
    text = words(rng, 1, 25).replace("</think>", "") if rng.random() < 0.8 else ""
    text = text + "\n</think>\n\n" if rng.random() < 0.9 else text
    text += words(rng, 0, 40)
    if rng.random() < 0.15:
        text += f"[[fill {rng.randint(1, 120)}]]"
    if rng.random() < 0.01:
        text += "[[fail the engine broke]]"
    for _ in range(rng.choice([1, 1, 1, 2, 3]) if tools else 0):
        name, _, schema = rng.choice(tools)
        text += "\n" + words(rng, 0, 5) if rng.random() < 0.2 else "\n"
        text += _call(rng, "unknown_tool" if rng.random() < 0.03 else name, arguments(rng, schema))
    return text


def _call(rng: Random, name: str, values: Json) -> str:
    """A call as the demo model writes it; one of twelve is cut off."""
    texts = {
        k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in values.items()
    }
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in texts.items())
    call = f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
    return call[: rng.randint(5, len(call))] if rng.random() < 0.08 else call

"""Draws what agents and models write: texts, tools, calls, and the script of a model's turn."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.kit.model_output import written_call

Json = dict[str, Any]
Tool = tuple[str, str, Json]
CLOSED = "\n</think>\n\n"


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


VALUES: Json = {"number": [1, 2.5, -3e9], "integer": [-5, 7, 10**12], "boolean": [True, False]}
VALUES |= {"array": [[], ["a", "b"], [{"a": 1}]], "object": [{}, {"a": {"b": [None]}}]}


def value(rng: Random, schema: Json) -> Any:
    """A value of the schema's type, most of the time."""
    if rng.random() < 0.03:
        return rng.randint(-5, 5)
    return rng.choice(VALUES.get(str(schema.get("type")), [words(rng, 0, 6)]))


def arguments(rng: Random, schema: Json) -> Json:
    """Arguments of a call."""
    known = schema.get("properties", {})
    return {name: value(rng, kind) for name, kind in known.items() if rng.random() < 0.8}


def ask(rng: Random, tools: list[Tool], turns: int) -> str:
    """A user's text that scripts the next turns; rarely one for the rule-based agent."""
    if rng.random() < 0.1:
        return rng.choice(["Run `ls -la` please.", "Answer with the word: BLUE", "Hello?"])
    scripts = (_script(rng, tools if n < turns - 1 else []) for n in range(turns))
    return words(rng, 0, 12) + "".join(f"[[say]]{script}[[/say]]" for script in scripts)


def _script(rng: Random, tools: list[Tool]) -> str:
    """What the model writes in one turn: reasoning, text, calls."""
    text = words(rng, 0, 25).replace("</think>", "") + (CLOSED if rng.random() < 0.9 else "")
    text += words(rng, 0, 40)
    if rng.random() < 0.15:
        text += f"[[fill {rng.randint(1, 120)}]]"
    if rng.random() < 0.01:
        text += "[[fail the engine broke]]"
    for _ in range(rng.choice([1, 1, 1, 2, 3]) if tools else 0):
        name, _, schema = rng.choice(tools)
        text += "\n" + (words(rng, 0, 5) if rng.random() < 0.2 else "")
        text += _call(rng, "unknown_tool" if rng.random() < 0.03 else name, arguments(rng, schema))
    return text


def _call(rng: Random, name: str, values: Json) -> str:
    """A call as the demo model writes it; one of twelve is cut off."""
    call = written_call(name, **values)
    return call[: rng.randint(5, len(call))] if rng.random() < 0.08 else call

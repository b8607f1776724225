"""The thirty tools of `bench.guided_calls`, and arguments for them."""

import random
from collections.abc import Mapping
from typing import Any

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "path": {"type": "string"},
    "query": {"type": "string", "description": "What to look for."},
    "mode": {"type": "string", "enum": ["fast", "exact"]},
    "limit": {"type": "integer", "minimum": 1},
    "recursive": {"type": "boolean"},
    "files": {"type": "array", "items": {"type": "string"}},
    "filter": {
        "type": "object",
        "properties": {"key": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["key"],
    },
}
VERBS = ("read", "search", "list", "move", "check", "edit")
NOUNS = ("file", "issue", "branch", "table", "page")


def make_tools() -> list[dict[str, Any]]:
    """Thirty tools: name, description and schema."""
    names = [f"{verb}_{noun}" for verb in VERBS for noun in NOUNS]
    keys = list(PARAMETERS)
    tools: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        own = [keys[(number + step) % len(keys)] for step in range(2 + number % 3)]
        schema = {
            "type": "object",
            "properties": {key: PARAMETERS[key] for key in own},
            "required": own[:2],
        }
        description = f"Does {name.replace('_', ' ')}."
        tools.append({"name": name, "description": description, "schema": schema})
    return tools


TOOLS = make_tools()
SCHEMAS = {tool["name"]: tool["schema"] for tool in TOOLS}


def arguments_for(name: str, number: int) -> dict[str, Any]:
    """Valid arguments of a tool, different for each number."""
    rng = random.Random(number)
    schema = SCHEMAS[name]
    return {
        key: _value(part, rng)
        for key, part in schema["properties"].items()
        if key in schema["required"] or rng.random() < 0.5
    }


def _value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "integer":
            return rng.randrange(1, 99)
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return ["src/a.py", "src/b.py"][: rng.randrange(1, 3)]
        case "object":
            return {"key": "name", "count": rng.randrange(9)}
    return rng.choice(["src/main.py", "Oslo", "fix the test", "ls -la"])

"""Random JSON values, with texts that are hard to quote and numbers that are hard to write."""

import random
from typing import Any

LETTERS = [*"ab\"'\\/{}[],:<>|~]=\n\t\x00\x7f é", "🚢", "\u2028", "\\u", "true", "null"]
NUMBERS = [0, -1, 7, 2**53 + 1, -(2**63), 0.5, -2.75, 1e16, 1e-7, 1.5e300, 5e-324]


def any_text(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randint(0, 8)))


def any_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.choice(("text", "number", "constant", "list", "object")[: 5 if depth < 3 else 3])
    if kind == "text":
        return any_text(chance)
    if kind == "number":
        return chance.choice(NUMBERS)
    if kind == "constant":
        return chance.choice((None, True, False))
    size = range(chance.randint(0, 3))
    if kind == "list":
        return [any_value(chance, depth + 1) for _ in size]
    return {any_text(chance): any_value(chance, depth + 1) for _ in size}

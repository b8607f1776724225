"""`python -m fuzz.reduce FILE…`: reduces inputs of the parser target to the smallest case with the
same failure."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from fuzz.cases import Case, decode, to_vector
from fuzz.properties import PropertyViolated, check
from schemas.events import FinishReason

_SIMPLER: Final[tuple[Callable[[Case], Case], ...]] = (
    lambda case: replace(case, prefix=""),
    lambda case: replace(case, prefix="", raw=case.prefix + case.raw),
    lambda case: replace(case, calls_as_text=False),
    lambda case: replace(case, in_reasoning=False),
    lambda case: replace(case, reason=FinishReason.STOP),
    lambda case: replace(case, tools=()),
)


def violated(case: Case) -> str | None:
    """The property that a case violates, or the name of the exception; None if all hold."""
    try:
        check(case)
    except PropertyViolated as error:
        return error.property
    except Exception as error:
        return type(error).__name__
    return None


def reduced(case: Case) -> Case:
    """The smallest case found that violates the same property."""
    property = violated(case)
    if property is None:
        return case

    def fails(other: Case) -> bool:
        return violated(other) == property

    while True:
        before = case
        for simplify in _SIMPLER:
            if fails(simplify(case)):
                case = simplify(case)
        case = next((c for n in range(case.seed) if fails(c := replace(case, seed=n))), case)
        case = replace(case, raw=_shrunk(case.raw, lambda raw, c=case: fails(replace(c, raw=raw))))  # type: ignore[misc]
        case = replace(
            case,
            prefix=_shrunk(case.prefix, lambda p, c=case: fails(replace(c, prefix=p))),  # type: ignore[misc]
        )
        tools = (
            tuple(tool for tool in case.tools if tool.name in case.prefix + case.raw)
            or case.tools[:1]
        )
        if fails(replace(case, tools=tools)):
            case = replace(case, tools=tools)
        if case == before:
            return case


def _shrunk(text: str, fails: Callable[[str], bool]) -> str:
    """The text without every part that is not needed for the failure, other letters replaced by
    x."""
    size = len(text)
    while size:
        at = 0
        while at < len(text):
            shorter = text[:at] + text[at + size :]
            if fails(shorter):
                text = shorter
            else:
                at += size
        size //= 2
    for at, char in enumerate(text):
        plain = text[:at] + "x" + text[at + 1 :]
        if char.isalnum() and char != "x" and fails(plain):
            text = plain
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        least = reduced(decode(Path(name).read_bytes()))
        vector = to_vector(least, case=Path(name).name, property=violated(least), why="")
        print(json.dumps(vector, ensure_ascii=False), flush=True)

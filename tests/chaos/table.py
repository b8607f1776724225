"""The results of many trials as one table, and its place in the documentation. Pure, but for that
file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.trials import count

BEGIN, END = "<!-- measured: {suite} -->", "<!-- end of measured: {suite} -->"
HEAD = (
    "fault × instances", "trials", "streams", "lost", "wrong", "doubled", "not one end", "one error", "reconnected",
    "longest pause", "longest silence", "new: waited", "new: 503", "new: reconnected", "new: other",
)  # fmt: skip


def rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One row a cell, and the sum."""
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_cell.setdefault(result["cell"], []).append(result)
    found = [_row(cell, several) for cell, several in by_cell.items()]
    return [*found, _row("**all**", results)] if len(found) > 1 else found


def _row(name: str, results: Sequence[dict[str, Any]]) -> list[str]:
    of, new = count(results), count(results, "new")
    other = sum(new.values()) - new["whole"] - new["refused"] - new["reconnected"]
    numbers = [
        len(results),
        sum(of.values()),
        of["lost"] + of["refused"],
        of["wrong"] + of["ill-formed"],
        of["doubled"],
        of["ends"],
        of["told"],
        of["reconnected"],
    ]
    times = [f"{max(result[key] for result in results):.1f} s" for key in ("pause_s", "silence_s")]
    return [
        name,
        *map(str, numbers),
        *times,
        *map(str, (new["whole"], new["refused"], new["reconnected"], other)),
    ]


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """A table in Markdown."""
    lines = [HEAD, ["---", *["--:"] * (len(HEAD) - 1)], *rows(results)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def put(page: Path, suite: str, text: str) -> None:
    """Replaces the measured section of a suite on a page. Raises ValueError where it has none."""
    first, last = BEGIN.format(suite=suite), END.format(suite=suite)
    before, begin, rest = page.read_text().partition(first)
    _, end, behind = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{page} has no {first} … {last}")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{behind}")

"""The results of many trials as one table."""

from collections import Counter
from collections.abc import Sequence

from tests.chaos.trials import Result

HEAD = (
    "fault × instances", "trials", "streams", "lost", "wrong", "doubled", "not one end", "one error", "reconnected",
    "longest pause", "longest silence", "new: waited", "new: 503", "new: reconnected", "new: other",
)  # fmt: skip


def markdown(results: Sequence[Result]) -> str:
    """A table in Markdown: one row for each cell, and the sum."""
    rows = []
    for cell in dict.fromkeys(result.cell for result in results):
        rows.append(_row(cell, [result for result in results if result.cell == cell]))
    if len(rows) > 1:
        rows.append(_row("**all**", results))
    lines = [HEAD, ["---", *["--:"] * (len(HEAD) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _row(name: str, results: Sequence[Result]) -> list[str]:
    of, new = Counter[str](), Counter[str]()
    for result in results:
        of += result.verdicts
        new += result.new
    numbers = [
        len(results),
        of.total(),
        of["lost"] + of["refused"],
        of["wrong"] + of["ill-formed"],
        of["doubled"],
        of["ends"],
        of["told"],
        of["reconnected"],
    ]
    pause = max(result.pause_s for result in results)
    silence = max(result.silence_s for result in results)
    answered = [new["whole"], new["refused"], new["reconnected"]]
    after = [*answered, new.total() - sum(answered)]
    return [name, *map(str, numbers), f"{pause:.1f} s", f"{silence:.1f} s", *map(str, after)]

"""`python -m bench.parsers [--vllm DIR] [--sglang DIR]`: measures parsing per token, beside Python
parsers of others.

DIR is a folder with the unpacked wheel (`pip download --no-deps vllm==0.33.0`, then unzip). One
token a call, CPU time of this process, all parsers in turn in every round. `--write` writes the
table into README.md.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import parsers_streams as streams
from bench.parsers_peers import Open, Said, Stream, load
from bench.parsers_streams import TOOL, TOP, Load, Tokenizer
from bench.report import this_machine
from schemas.conversation import ToolSpec
from schemas.events import BlockEvent, BlockStart, Delta, FinishReason
from services.families import families, open_parser

README: Final = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- bench.parsers -->", "<!-- /bench.parsers -->"
SLOW_S: Final = 1.0
SLOW_ROUNDS: Final = 3
"""Maximum number of rounds for a stream that takes longer than that."""
LOADS: Final[dict[str, Callable[[str], Load]]] = {
    "reasoning": lambda family: streams.reasoning(family, 2000),
    "text": lambda family: streams.text(family, 2000),
    "arguments 2k": lambda family: streams.arguments(family, 2000),
    "arguments 8k": lambda family: streams.arguments(family, 8000),
}


class OurStream:
    """Our parser, with the interface of the others."""

    def __init__(self, family: str, tokenizer: Tokenizer, tools: list[dict[str, Any]]) -> None:
        specs = [ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in tools]
        self._parser = open_parser(family, tools=specs, in_reasoning=False)
        self._feed = self._parser.feed
        self._kind = ""

    def feed(self, text: str, token: int) -> list[BlockEvent]:
        return self._feed(text)

    def finish(self) -> list[BlockEvent]:
        return self._parser.finish(FinishReason.STOP)

    def note(self, out: list[BlockEvent], said: Said) -> None:
        for event in out:
            if isinstance(event, BlockStart):
                self._kind = "arguments" if event.kind == "tool_use" else event.kind
            elif isinstance(event, Delta):
                setattr(said, self._kind, getattr(said, self._kind) + event.text)


@dataclass
class Cell:
    """One parser on one load: µs per token, in each round."""

    rounds: list[float] = field(default_factory=list)
    right: bool = True
    """Whether its output equals the content of the stream."""
    failure: str = ""

    @property
    def us(self) -> float | None:
        return statistics.median(self.rounds) if self.rounds else None


Table = dict[str, dict[str, dict[str, Cell]]]
"""Cells by family, load and parser."""


def measure(parsers: dict[str, Open], only: Sequence[str], rounds: int) -> Table:
    """Measures every family, load and parser."""
    table: Table = {}
    for family in only:
        table[family] = {
            name: _load(parsers, family, make(family), rounds) for name, make in LOADS.items()
        }
        shown = (
            f"{n} " + "/".join(_cell(c) for c in cells.values())
            for n, cells in table[family].items()
        )
        print(f"{family:14} {'   '.join(shown)}", file=sys.stderr, flush=True)
    return table


def _load(parsers: dict[str, Open], family: str, stream: Load, rounds: int) -> dict[str, Cell]:
    tokenizer = Tokenizer(
        list(dict.fromkeys(stream.tokens)), families()[family].markers, families()[family].stops
    )
    steps = [(token, tokenizer.ids[token]) for token in stream.tokens]
    cells = {name: Cell() for name in parsers}
    for name, make in parsers.items():
        try:
            cells[name].right = _right(make(family, tokenizer, [TOOL]), steps, stream)
        except Exception as error:
            cells[name].failure = f"{type(error).__name__}: {error}"
    for number in range(rounds):
        for name, make in parsers.items():
            cell = cells[name]
            slow = (
                number >= SLOW_ROUNDS
                and not cell.failure
                and cell.rounds[0] * len(steps) > SLOW_S * 1e6
            )
            if not cell.failure and not slow:
                cell.rounds.append(_timed(make(family, tokenizer, [TOOL]), steps))
    return cells


def _timed(stream: Stream, steps: list[tuple[str, int]]) -> float:
    feed = stream.feed
    gc.collect()
    began = time.process_time_ns()
    for text, token in steps:
        feed(text, token)
    stream.finish()
    return (time.process_time_ns() - began) / len(steps) / 1000


def _right(stream: Stream, steps: list[tuple[str, int]], told: Load) -> bool:
    said = Said()
    for text, token in steps:
        stream.note(stream.feed(text, token), said)
    stream.note(stream.finish(), said)
    try:
        content = json.loads(said.arguments)["content"] if told.content else ""
    except (ValueError, KeyError, TypeError):
        content = None
    return (said.reasoning.strip(), said.text.strip(), content) == (
        told.reasoning,
        told.text,
        told.content,
    )


def _cell(cell: Cell) -> str:
    return "–" if cell.us is None else f"{cell.us:.2f}{'' if cell.right else '*'}"


def markdown(table: Table, names: list[str], command: str) -> str:
    """Returns the table, its medians, and how much faster ours is."""
    rows = [f"| family | {' | '.join(LOADS)} |", "|---" * (len(LOADS) + 1) + "|"]
    for family, loads in table.items():
        rows.append(
            f"| {family} | "
            f"{' | '.join(' / '.join(map(_cell, cells.values())) for cells in loads.values())} |"
        )
    rows.append(f"| **median** | {' | '.join(_medians(table, load, names) for load in LOADS)} |")
    rows += [
        f"| **{n} ÷ ours** | {' | '.join(_ratio(table, load, n) for load in LOADS)} |"
        for n in names[1:]
    ]
    cells = (
        (f, n, c) for f, loads in table.items() for cs in loads.values() for n, c in cs.items()
    )
    failures = sorted(
        {f"- {name} on {family}: {cell.failure}" for family, name, cell in cells if cell.failure}
    )
    return "\n".join(
        [_head(names), *rows, "", *failures, *([""] if failures else []), f"    {command}"]
    )


def _head(names: list[str]) -> str:
    machine = this_machine()
    return f"""
µs of CPU per token, {" / ".join(names)}, median of the rounds. {datetime.now(UTC):%d %b %Y},
Python {machine.python}, {machine.processor}, {machine.cores} cores shared with other work
(load {machine.load_before} at the start): the ratios, measured side by side, say more than the
figures. `*`: what it said is not what the stream says. `–`: it did not run.
"""


def _values(table: Table, load: str, name: str) -> list[float]:
    return [us for loads in table.values() if (us := loads[load][name].us) is not None]


def _medians(table: Table, load: str, names: list[str]) -> str:
    return " / ".join(
        f"{statistics.median(values):.2f}" if (values := _values(table, load, n)) else "–"
        for n in names
    )


def _ratio(table: Table, load: str, name: str) -> str:
    """Returns the median over the families that both parsed."""
    both = ((loads[load][name].us, loads[load]["ours"].us) for loads in table.values())
    ratios = [theirs / ours for theirs, ours in both if theirs and ours]
    return f"{statistics.median(ratios):.1f}" if ratios else "–"


def main() -> None:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(prog="python -m bench.parsers", description=__doc__)
    arguments.add_argument("--vllm", type=Path, metavar="DIR")
    arguments.add_argument("--sglang", type=Path, metavar="DIR")
    arguments.add_argument(
        "--extra",
        type=Path,
        metavar="DIR",
        help="what theirs need: ijson, orjson, partial_json_parser",
    )
    arguments.add_argument("--families", nargs="+", default=list(TOP), choices=list(families()))
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--write", action="store_true", help="put the table into README.md")
    given = arguments.parse_args()
    if given.extra is not None:
        sys.path.append(str(given.extra))
    parsers: dict[str, Open] = {"ours": OurStream}
    for name, folder in (("vLLM", given.vllm), ("SGLang", given.sglang)):
        if (peer := load(folder, name.lower())) is not None:
            parsers[name] = peer
    table = measure(parsers, given.families, given.rounds)
    said = markdown(
        table, list(parsers), "python -m bench.parsers --vllm DIR --sglang DIR --extra DIR"
    )
    print(said)
    if given.write:
        before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
        README.write_text(
            f"{before}{BEGIN}\n{said}\n{END}{rest.partition(END)[2]}", encoding="utf-8"
        )


if __name__ == "__main__":
    main()

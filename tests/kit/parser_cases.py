"""The vectors and how they are run: loading, chunkings, folding events into blocks, comparing
blocks."""

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from schemas.conversation import ToolSpec
from schemas.events import BlockEvent, BlockStart, BlockStop, Delta, FinishReason
from services.families import TurnParser, open_parser
from services.families.grammar.call_marker import CallReader
from services.families.grammar.scanner import Reader, Scanner
from services.families.grammar.shapes import BLANKS
from services.families.grammar.turn_state import CallOpener, TurnState
from services.families.readers.json_values import Values
from services.families.tool_types import Tools
from tests.kit.examples import chance_for

VECTORS = Path(__file__).parent.parent / "vectors"
_TOKEN = re.compile(r"<[|｜]?/?[\w▁:|｜ ]+[|｜]?>| ?\w+|\s+|.", re.DOTALL)

Block = dict[str, Any]
R = TypeVar("R")
FORCED = CallOpener(name="f")


@cache
def vectors(family: str | None = None) -> list[dict[str, Any]]:
    """All cases, or those of one family."""
    return [
        json.loads(line)
        for file in sorted(VECTORS.glob("*.jsonl"))
        if family in (None, file.stem)
        for line in file.read_text(encoding="utf-8").splitlines()
        if line
    ]


def case_name(case: dict[str, Any]) -> str:
    return f"{case['family']} {case['case']}"


def tools(case: dict[str, Any]) -> list[ToolSpec]:
    """The request's tools."""
    return [
        ToolSpec(name=t["name"], description=t["description"], schema=t["parameters"])
        for t in case["tools"]
    ]


def opened(case: dict[str, Any]) -> TurnParser:
    """A parser for the case, which may also have `prefix` and `calls_as_text`."""
    return open_parser(
        case["family"],
        tools=tools(case),
        in_reasoning=case["prompt_ends_in_reasoning"],
        prefix=case.get("prefix", ""),
        calls_as_text=case.get("calls_as_text", False),
    )


def words(text: str) -> list[str]:
    """Roughly what a tokenizer makes of it: markers whole, words with the blank before them."""
    return _TOKEN.findall(text)


def grouped(pieces: list[str], size: int) -> list[str]:
    return ["".join(pieces[i : i + size]) for i in range(0, len(pieces), size)]


def cut_at_random(text: str) -> list[str]:
    chance = chance_for(text)
    pieces: list[str] = []
    while text:
        size = chance.choice((1, 1, 2, 3, 5, 8, 40))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


CUTS: dict[str, Callable[[str], list[str]]] = {
    "characters": list,
    "tokens": words,
    "fours": lambda text: grouped(words(text), 4),
    "random pieces": cut_at_random,
}


def any_way(text: str) -> str:
    """One of these ways, which the text decides."""
    return chance_for(text).choice([*CUTS])


def any_cut(text: str) -> list[str]:
    """The text, cut in any one of these ways."""
    return CUTS[any_way(text)](text)


def run(
    parser: TurnParser, pieces: Iterable[str], reason: FinishReason = FinishReason.STOP
) -> list[BlockEvent]:
    """All events of one generation."""
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish(reason)
    assert not parser.finish(reason), "a second finish has events"
    assert not parser.feed("x"), "there are events after the finish"
    msgspec.json.encode(events)  # every event must be encodable
    return events


def every_way(
    open: Callable[[], TurnParser],
    raw: str,
    reason: FinishReason = FinishReason.STOP,
    ways: Iterable[str] = tuple(CUTS),
) -> list[Block]:
    """The blocks of a generation, which are the same whole and cut in these ways."""
    whole = fold(run(open(), [raw], reason))
    for way in ways:
        pieces = CUTS[way](raw)
        blocks = fold(run(open(), pieces, reason))
        assert blocks == whole, f"in {way}: {pieces}"
    return whole


def fold(events: Iterable[BlockEvent]) -> list[Block]:
    """Events as blocks; checks that they are a well-formed stream on the way."""
    blocks: list[Block] = []
    open_block: Block | None = None
    for event in events:
        match event:
            case BlockStart():
                assert open_block is None, "a block starts inside another"
                assert event.block == len(blocks)
                assert (event.kind == "tool_use") == bool(event.name), "a call without a name"
                open_block = {
                    "type": event.kind,
                    "text": "",
                    "name": event.name,
                    "id": event.call_id,
                }
                blocks.append(open_block)
            case Delta():
                assert open_block is not None
                assert event.block == len(blocks) - 1
                assert event.offset == len(open_block["text"]), (
                    "a delta does not go on where the last one ended"
                )
                assert event.text
                open_block["text"] += event.text
            case BlockStop():
                assert open_block is not None
                assert event.block == len(blocks) - 1
                assert event.length == len(open_block["text"])
                open_block["complete"] = event.complete
                open_block = None
    assert open_block is None, "a block is left open"
    for block in blocks:
        if block["type"] != "tool_use":
            assert block["complete"]
            assert block["text"].strip(BLANKS), "a blank block"
        elif block["complete"]:
            block["input"] = json.loads(block["text"], parse_constant=_no_constant)
            assert isinstance(block["input"], dict)
        else:
            assert block["text"][:1] in ("", "{"), "arguments do not begin an object"
    return blocks


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def problems(case: dict[str, Any], blocks: list[Block]) -> str | None:
    """What is wrong with `blocks` as the answer to `case`; None if nothing is."""
    got = [b for b in blocks if b["type"] != "tool_use" or b["complete"]]
    want = [b for b in case["expected"] if b.get("complete", True)]
    shown = f"\n  raw  {case['raw']!r}\n  want {case['expected']}\n  got  {blocks}"
    if [b["type"] for b in got] != [b["type"] for b in want]:
        return "other blocks" + shown
    for mine, theirs in zip(got, want, strict=True):
        if theirs["type"] == "tool_use":
            if (mine["name"], mine["input"]) != (theirs["name"], theirs["input"]):
                return "another call" + shown
            if "id" in theirs and mine["id"] != theirs["id"]:
                return "another id" + shown
        elif mine["text"].strip() != theirs["text"].strip():
            return "other text" + shown
    cut = [b["name"] for b in case["expected"] if not b.get("complete", True)]
    if any(b["name"] not in cut for b in blocks if b["type"] == "tool_use" and not b["complete"]):
        return "an unexpected incomplete call" + shown
    return None


def drive(reading: Reader[R], scanner: Scanner, pieces: Iterable[str]) -> R:
    """Runs a reader over a scanner that gets `pieces` one by one and then ends; what it returns.
    The scanner gets all."""
    waiting = iter(pieces)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            scanner.extend("".join(waiting))
            result: R = end.value
            return result
        assert not scanner.final, "a reader waits at the end of its input"
        piece = next(waiting, None)
        if piece is None:
            scanner.final = True
        else:
            scanner.extend(piece)


def read_body(
    body: CallReader,
    text: str,
    tools: Iterable[ToolSpec] = (),
    opener: CallOpener = FORCED,
    size: int = 1,
    reason: FinishReason = FinishReason.STOP,
) -> tuple[list[Block], str, str | None]:
    """Reads the text after an opener; returns the blocks, the remaining text, and text that is not
    a call."""
    turn = TurnState(Tools(tools), reasoning=False, calls=True)
    turn.scanner.reason = reason
    turn.scanner.extend(opener.text)
    turn.scanner.position = len(opener.text)
    reading = drive(body.read(turn, opener), turn.scanner, grouped(list(text), size))
    turn.blocks.settle(stopped=reason is FinishReason.STOP)
    return fold(turn.blocks.drain()), turn.scanner.rest(), None if reading.is_call else reading.text


def copy_value(reader: Values, text: str, size: int | None = None) -> tuple[str, bool, str]:
    """Reads a value; returns its JSON, whether it ended, and the remaining text; the same however
    the text is cut."""
    results = []
    for pieces in [size] if size else [1, 3, 1000]:
        said: list[str] = []
        scanner = Scanner()
        ended = drive(reader.copy(scanner, said.append), scanner, grouped(list(text), pieces))
        results.append(("".join(said), ended, scanner.rest()))
    assert results == results[:1] * len(results)
    return results[0]

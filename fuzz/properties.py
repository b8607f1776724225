"""Properties of the parser core that hold for every generation of every family, whatever the model
wrote.

`check` parses one case in one piece, in random pieces and character by character, and raises
`PropertyViolated` for the first property that does not hold. The docstring of a check names the
cases that it leaves out.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from re import compile, escape
from typing import Any, Final

import msgspec

from fuzz.cases import Case
from fuzz.json_prefix import is_object_prefix
from fuzz.shapes import first_characters, framing, reopeners
from schemas.events import BlockEvent, BlockKind, BlockStart, Delta, FinishReason
from services.families import families
from services.families.grammar.shapes import BLANKS

HOLD_BACK: Final = 1600
"""Characters of text that a shape may hold back: two holes of 256, blanks, literals and what must
follow."""
_COPIED_ELSEWHERE: Final = frozenset({"minimax_m3"})
"""Joins pieces of text between nested tags: its values need not be one piece of the input."""


class PropertyViolated(AssertionError):
    """A property does not hold."""

    def __init__(self, property: str, detail: str) -> None:
        super().__init__(f"{property}: {detail}")
        self.property = property


@dataclass
class Block:
    """A block as a receiver assembles it."""

    kind: BlockKind
    name: str | None
    call_id: str | None
    text: str = ""
    complete: bool | None = None

    @property
    def call(self) -> bool:
        """A call that may run."""
        return self.kind == "tool_use" and self.complete is True


def check(case: Case) -> list[Block]:
    """Checks every property of one case; returns its blocks."""
    whole = fold(_run(case, [case.raw]))
    thoughts: list[bool] = []
    steps = _steps(case, case.raw, thoughts)
    _same(whole, fold([event for step in steps for event in step]), "per character")
    pieces = case.pieces()
    _same(whole, fold(_run(case, pieces)), f"in pieces {pieces}")
    at_once(case, steps)
    held_back(steps)
    from_the_input(case, whole)
    accounted_for(case, whole)
    without_calls(case, whole)
    cut_off(case, whole)
    in_reasoning(steps, thoughts)
    return whole


def fold(events: Iterable[BlockEvent]) -> list[Block]:
    """Events as blocks: numbered in order, one open at a time, each delta where the last one ended,
    lengths right."""
    blocks: list[Block] = []
    opened = False
    for event in events:
        if isinstance(event, BlockStart):
            _require(not opened, "one open block", f"{event} while {blocks[-1:]} is open")
            _require(
                event.block == len(blocks),
                "contiguous block numbers",
                f"{event} as number {len(blocks)}",
            )
            _require(
                (event.kind == "tool_use") == bool(event.name), "a call has a name", repr(event)
            )
            blocks.append(Block(event.kind, event.name, event.call_id))
            opened = True
            continue
        _require(
            opened and event.block == len(blocks) - 1,
            "one open block",
            f"{event} outside its block",
        )
        block = blocks[-1]
        if isinstance(event, Delta):
            _require(
                event.offset == len(block.text),
                "contiguous offsets",
                f"{event} after {len(block.text)} characters",
            )
            _require(bool(event.text), "no empty delta", repr(event))
            block.text += event.text
        else:
            _require(
                event.length == len(block.text),
                "length",
                f"{event}, but {len(block.text)} characters",
            )
            block.complete = event.complete
            opened = False
    _require(not opened, "every block is closed", repr(blocks[-1:]))
    for block in blocks:
        _content(block)
    return blocks


def _content(block: Block) -> None:
    if block.kind != "tool_use":
        _require(bool(block.text.strip(BLANKS)), "no blank block", repr(block))
        _require(block.complete is True, "prose is complete", repr(block))
    elif block.complete:
        _require(isinstance(_arguments(block), dict), "arguments are a JSON object", repr(block))
    else:
        _require(
            is_object_prefix(block.text), "arguments are a prefix of a JSON object", repr(block)
        )


def _arguments(block: Block) -> Any:
    try:
        return json.loads(block.text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(word: str) -> None:
    raise ValueError(word)


def at_once(case: Case, steps: list[list[BlockEvent]]) -> None:
    """A letter or digit that begins no marker is emitted by its own `feed`, unless text before it
    is held back.

    Checked only where the character before it was emitted on its own, so that nothing is held back.
    """
    begins = first_characters(case.family)
    free: BlockKind | None = None
    kind: BlockKind | None = None
    for char, events in zip(case.raw, steps, strict=False):
        plain = char.isalnum() and char not in begins
        if free is not None and plain:
            texts = [e.text for e in events if isinstance(e, Delta)]
            _require(
                texts == [char] and len(events) == 1,
                "plain text at once",
                f"{char!r} in {free} gave {events}",
            )
        for event in events:
            if isinstance(event, BlockStart):
                kind = event.kind
        last = events[-1] if events else None
        free = None
        if plain and isinstance(last, Delta) and last.text == char:
            free = kind


def held_back(steps: list[list[BlockEvent]]) -> None:
    """Prose is held back no longer than the longest marker. A body in brackets may take longer, up
    to its name."""
    kind: BlockKind | None = None
    for events in steps:
        for event in events:
            if isinstance(event, BlockStart):
                kind = event.kind
            elif isinstance(event, Delta) and kind != "tool_use" and len(event.text) > HOLD_BACK:
                solid = len(event.text) - sum(event.text.count(blank) for blank in BLANKS)
                _require(
                    solid <= HOLD_BACK or any(bracket in event.text for bracket in "{[("),
                    "bounded hold-back",
                    f"{solid} characters of {kind} at once",
                )


def from_the_input(case: Case, blocks: list[Block]) -> None:
    """Prose blocks are substrings of the input, in order; so are names and strings.

    Reasoning may lack markers that open it again.
    """
    source = _consumed(case) + case.prefix + case.raw
    at = 0
    for block in blocks:
        if block.kind == "tool_use":
            continue
        found = compile(escape(block.text)).search(source, at) or compile(
            _spelled(case, block)
        ).search(source, at)
        _require(found is not None, "prose is from the input, once and in order", repr(block))
        at = found.end() if found is not None else at
    if "\\" in source or "&" in source:
        return  # escapes: a value may be spelled otherwise
    plain = source.replace('<|"|>', '"').replace("<escape>", '"')
    for block in blocks:
        if block.kind != "tool_use":
            continue
        same = sum(b.name == block.name for b in blocks if b.kind == "tool_use")
        _require(
            same <= source.count(str(block.name)), "every call has a name of its own", repr(blocks)
        )
        _require((block.call_id or "") in source, "an id is from the input", repr(block))
        if block.complete and case.family not in _COPIED_ELSEWHERE:
            for value in _arguments(block).values():
                if isinstance(value, str):
                    _require(value in plain, "a string is from the input", f"{value!r} in {block}")


def _spelled(case: Case, block: Block) -> str:
    """A pattern for the input of a block: reasoning does not have the markers that open it
    again."""
    again = reopeners(case.family) if block.kind == "reasoning" else ""
    return again.join(map(escape, block.text))


def accounted_for(case: Case, blocks: list[Block]) -> None:
    """Without calls, everything but prose is markers and white space. Not checked for channels,
    which have headers."""
    if (
        case.prefix
        or case.reason is not FinishReason.STOP
        or any(b.kind == "tool_use" for b in blocks)
    ):
        return
    gap = framing(case.family, calls=bool(case.tools) and not case.calls_as_text)
    if gap is not None:
        source = _consumed(case) + case.raw
        plain, spelled = [escape(b.text) for b in blocks], [_spelled(case, b) for b in blocks]
        fits = gap.fits(source, plain) or gap.fits(source, spelled)
        _require(fits, "nothing is lost", f"{blocks} of {case.raw!r}")


def _consumed(case: Case) -> str:
    """The text that the prompt already contains and the family puts back."""
    consumed: str = getattr(families()[case.family].grammar, "consumed", "")
    return consumed if case.in_reasoning else ""


def without_calls(case: Case, blocks: list[Block]) -> None:
    """No call is made where calls are treated as text."""
    if case.calls_as_text or not case.tools:
        _require(
            not any(b.kind == "tool_use" for b in blocks), "no call without tools", repr(blocks)
        )


def cut_off(case: Case, blocks: list[Block]) -> None:
    """A call that is complete after truncation by `max_tokens` is complete and equal in the full
    output."""
    calls = [(b.name, b.call_id, b.text) for b in blocks if b.call]
    at = Random(case.seed).randrange(len(case.raw) + 1)
    for text in {case.raw[:at], case.raw}:
        cut = replace(case, raw=text, reason=FinishReason.LENGTH)
        early = [(b.name, b.call_id, b.text) for b in fold(_run(cut, [text])) if b.call]
        _require(
            early == calls[: len(early)],
            "a cut completes nothing",
            f"{early} at {text[-80:]!r}, later {calls}",
        )


def in_reasoning(steps: list[list[BlockEvent]], thoughts: list[bool]) -> None:
    """While a block is open, `in_reasoning` is True exactly for reasoning; reasoning tokens are
    counted by it.

    Not checked where a call stays open until the finish: with its end, reasoning after it is held
    back.
    """
    kind: BlockKind | None = None
    last = max((at for at, events in enumerate(steps[:-1]) if events), default=-1)
    for at, (events, thought) in enumerate(zip(steps, thoughts, strict=False)):
        for event in events:
            if not isinstance(event, Delta):
                kind = event.kind if isinstance(event, BlockStart) else None
        if at > last and kind == "tool_use":
            return
        _require(
            kind is None or thought == (kind == "reasoning"),
            "reasoning is known as such",
            f"{thought} in {kind}",
        )


def _same(mine: list[Block], theirs: list[Block], how: str) -> None:
    _require(mine == theirs, "chunk invariance", f"whole {mine}, {how} {theirs}")


def _run(case: Case, pieces: list[str]) -> list[BlockEvent]:
    return [event for step in _steps(case, pieces) for event in step]


def _steps(
    case: Case, pieces: Iterable[str], thoughts: list[bool] | None = None
) -> list[list[BlockEvent]]:
    """The events of each feed, and of the finish; nothing may come after it. `thoughts`: takes
    `in_reasoning`."""
    parser = case.open()
    steps: list[list[BlockEvent]] = []
    for piece in pieces:
        steps.append(parser.feed(piece))
        if thoughts is not None:
            thoughts.append(parser.in_reasoning)
    steps.append(parser.finish(case.reason))
    _require(not parser.finish(case.reason), "nothing after the finish", "a second finish")
    _require(not parser.feed("x"), "nothing after the finish", "a feed")
    try:
        msgspec.json.encode(steps)
    except ValueError as error:
        raise PropertyViolated("events fit the wire", f"{error}: {steps}") from error
    return steps


def _require(holds: bool, property: str, detail: str) -> None:
    if not holds:
        raise PropertyViolated(property, detail)

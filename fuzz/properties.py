"""Properties of the parser core that hold for every generation of every family, whatever the model
wrote.

`check` parses one case in one piece, in random pieces and character by character. The message of an
AssertionError names the property that does not hold. The docstring of a check names the cases that
it leaves out.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from re import escape, search
from typing import Any, Final

import msgspec

from fuzz.cases import Case
from fuzz.shapes import dropped, first_characters, framing
from schemas.events import BlockEvent, BlockKind, BlockStart, Delta, FinishReason
from services.families import families
from services.families.grammar.shapes import BLANKS
from tests.kit.parser_cases import Block, fold

Steps = list[list[BlockEvent]]
"""The events of each `feed`, and of the finish."""
_COPIED_ELSEWHERE: Final = frozenset({"minimax_m3"})
"""Joins pieces of text between nested tags: its values need not be one piece of the input."""


def check(case: Case) -> list[Block]:
    """Checks every property of one case; returns its blocks."""
    whole = blocks_of(case, [case.raw])
    thoughts: list[bool] = []
    steps = steps_of(case, case.raw, thoughts)
    each = fold(event for step in steps for event in step)
    assert each == whole, f"chunk invariance: whole {whole}, per character {each}"
    cut = blocks_of(case, case.pieces())
    assert cut == whole, f"chunk invariance: whole {whole}, in pieces {case.pieces()} {cut}"
    contents(whole)
    at_once(case, steps)
    prose_is_from_the_input(case, whole)
    calls_are_from_the_input(case, whole)
    accounted_for(case, whole)
    without_calls(case, whole)
    cut_off(case, whole)
    in_reasoning(steps, thoughts)
    return whole


def blocks_of(case: Case, pieces: Iterable[str]) -> list[Block]:
    """The blocks; `fold` checks that their stream is well-formed."""
    return fold(event for step in steps_of(case, pieces, []) for event in step)


def steps_of(case: Case, pieces: Iterable[str], thoughts: list[bool]) -> Steps:
    """The events; nothing may come after the finish. `thoughts` gets `in_reasoning` of each."""
    parser = case.open()
    steps: Steps = []
    for piece in pieces:
        steps.append(parser.feed(piece))
        thoughts.append(parser.in_reasoning)
    steps.append(parser.finish(case.reason))
    assert not parser.finish(case.reason), "nothing after the finish: a second finish"
    assert not parser.feed("x"), "nothing after the finish: a feed"
    try:
        msgspec.json.encode(steps)
    except ValueError as error:
        raise AssertionError(f"events fit the wire: {error}: {steps}") from error
    return steps


def contents(blocks: list[Block]) -> None:
    """No blank text; a call has a name; what is there of its arguments begins a JSON object."""
    for block in blocks:
        if block["type"] != "tool_use":
            assert block["text"].strip(BLANKS), f"no blank block: {block}"
            continue
        assert block["name"], f"a call has a name: {block}"
        if block["complete"]:
            assert arguments(block) is not None, f"arguments are a JSON object: {block}"
        else:
            assert block["text"][:1] in ("", "{"), f"arguments begin a JSON object: {block}"


def arguments(block: Block) -> dict[str, Any] | None:
    """The arguments of a complete call; None if they are not an object of strict JSON."""
    try:
        found = json.loads(block["text"], parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_constant(word: str) -> None:
    raise ValueError(word)


def at_once(case: Case, steps: Steps) -> None:
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
            texts = [event.text for event in events if isinstance(event, Delta)]
            alone = texts == [char] and len(events) == 1
            assert alone, f"plain text at once: {char!r} in {free} gave {events}"
        for event in events:
            if isinstance(event, BlockStart):
                kind = event.kind
        last = events[-1] if events else None
        free = None
        if plain and isinstance(last, Delta) and last.text == char:
            free = kind


def prose_is_from_the_input(case: Case, blocks: list[Block]) -> None:
    """Prose blocks are substrings of the input, in order; they may lack markers."""
    source = _consumed(case) + case.prefix + case.raw
    at = 0
    for block in blocks:
        if block["type"] == "tool_use":
            continue
        start = source.find(block["text"], at)
        if start >= 0:
            at = start + len(block["text"])
            continue
        found = search(_with_dropped(case, block), source[at:])
        assert found is not None, f"prose is from the input, once and in order: {block}"
        at += found.end()


def calls_are_from_the_input(case: Case, blocks: list[Block]) -> None:
    """Names (one for each call), ids and strings are substrings of the input.

    Not checked where it has escapes: a value may be spelled otherwise.
    """
    source = _consumed(case) + case.prefix + case.raw
    if "\\" in source or "&" in source:
        return
    plain = source.replace('<|"|>', '"').replace("<escape>", '"')
    calls = [block for block in blocks if block["type"] == "tool_use"]
    names = [call["name"] for call in calls]
    for call in calls:
        own = names.count(call["name"]) <= source.count(call["name"])
        assert own, f"every call has a name of its own: {blocks}"
        assert (call["id"] or "") in source, f"an id is from the input: {call}"
        if call["complete"] and case.family not in _COPIED_ELSEWHERE:
            for value in (arguments(call) or {}).values():
                known = not isinstance(value, str) or value in plain
                assert known, f"a string is from the input: {value!r} in {call}"


def _with_dropped(case: Case, block: Block) -> str:
    """A pattern for the input of a block, which does not have all markers."""
    between = dropped(case.family, reasoning=block["type"] == "reasoning")
    return between.join(map(escape, block["text"]))


def accounted_for(case: Case, blocks: list[Block]) -> None:
    """Without calls, everything but prose is markers and white space. Not checked for channels,
    which have headers."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    if case.prefix or case.reason is not FinishReason.STOP or calls:
        return
    frame = framing(case.family, calls=bool(case.tools) and not case.calls_as_text)
    if frame is not None:
        source = _consumed(case) + case.raw
        plain = [escape(block["text"]) for block in blocks]
        with_dropped = [_with_dropped(case, block) for block in blocks]
        fits = frame.fits(source, plain) or frame.fits(source, with_dropped)
        assert fits, f"nothing is lost: {blocks} of {case.raw!r}"


def _consumed(case: Case) -> str:
    """The text that the prompt already contains and the family puts back."""
    consumed: str = getattr(families()[case.family].grammar, "consumed", "")
    return consumed if case.in_reasoning else ""


def without_calls(case: Case, blocks: list[Block]) -> None:
    """No call is made where calls are treated as text."""
    if case.calls_as_text or not case.tools:
        calls = [block for block in blocks if block["type"] == "tool_use"]
        assert not calls, f"no call without tools: {blocks}"


def cut_off(case: Case, blocks: list[Block]) -> None:
    """A call that is complete after truncation by `max_tokens` is complete and equal in the full
    output."""
    calls = _complete_calls(blocks)
    at = Random(case.seed).randrange(len(case.raw) + 1)
    for text in {case.raw[:at], case.raw}:
        cut = replace(case, raw=text, reason=FinishReason.LENGTH)
        early = _complete_calls(blocks_of(cut, [text]))
        same = early == calls[: len(early)]
        assert same, f"a cut completes nothing: {early} at {text[-80:]!r}, later {calls}"


def _complete_calls(blocks: list[Block]) -> list[tuple[str, str, str]]:
    return [
        (block["name"], block["id"], block["text"])
        for block in blocks
        if block["type"] == "tool_use" and block["complete"]
    ]


def in_reasoning(steps: Steps, thoughts: list[bool]) -> None:
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
        known = kind is None or thought == (kind == "reasoning")
        assert known, f"reasoning is known as such: {thought} in {kind}"

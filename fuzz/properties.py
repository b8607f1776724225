"""Properties of the parser core that hold for every generation of every family, whatever the model
wrote.

`check` parses one case (`fuzz.outputs`) in every chunking. The message of an AssertionError names
the property that does not hold. The docstring of a check names the cases that it leaves out.
"""

from re import escape, fullmatch, search
from typing import Final

from fuzz.markers import dropped, framing, notations
from fuzz.outputs import Case
from schemas.events import BlockEvent, BlockKind, BlockStart, Delta, FinishReason
from services.families import find_family
from tests.kit.examples import chance_for
from tests.kit.parser_cases import Block, every_way, fold, opened, run

_COPIED_ELSEWHERE: Final = frozenset({"minimax_m3"})
"""Joins pieces of text between nested tags: its values need not be one piece of the input."""


def check(case: Case) -> list[Block]:
    """Checks every property of one case; returns its blocks."""
    blocks = every_way(lambda: opened(case), case["raw"], FinishReason(case["finish_reason"]))
    parser = opened(case)
    steps: list[list[BlockEvent]] = []  # the events of each character
    thoughts: list[bool] = []
    for char in case["raw"]:
        steps.append(parser.feed(char))
        thoughts.append(parser.in_reasoning)
    at_once(case, steps)
    prose_is_from_the_input(case, blocks)
    calls_are_from_the_input(case, blocks)
    accounted_for(case, blocks)
    cut_off(case, blocks)
    in_reasoning(steps, thoughts)
    return blocks


def at_once(case: Case, steps: list[list[BlockEvent]]) -> None:
    """A letter or digit that begins no marker is emitted by its own `feed`, unless text before it
    is held back.

    Checked only where the character before it was emitted on its own, so that nothing is held back.
    """
    begins = {text[0] for text in notations(case["family"])}
    free = False
    for char, events in zip(case["raw"], steps, strict=True):
        plain = char.isalnum() and char not in begins
        last = events[-1] if events else None
        shown = isinstance(last, Delta) and last.text == char
        alone = shown and len(events) == 1
        assert alone or not (free and plain), f"plain text at once: {char!r} gave {events}"
        free = shown and plain


def prose_is_from_the_input(case: Case, blocks: list[Block]) -> None:
    """Prose blocks are substrings of the input, in order; they may lack markers."""
    source = _source(case)
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
    """Names (one for each call), ids and strings are substrings of the input; without tools, and
    where calls are treated as text, there are none.

    Not checked where it has escapes: a value may be spelled otherwise.
    """
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert _reads_calls(case) or not calls, f"no call without tools: {blocks}"
    source = _source(case)
    if "\\" in source or "&" in source:
        return
    plain = source.replace('<|"|>', '"').replace("<escape>", '"')
    names = [call["name"] for call in calls]
    for call in calls:
        own = names.count(call["name"]) <= source.count(call["name"])
        assert own, f"every call has a name of its own: {blocks}"
        assert (call["id"] or "") in source, f"an id is from the input: {call}"
        if call["complete"] and case["family"] not in _COPIED_ELSEWHERE:
            for value in call["input"].values():
                known = not isinstance(value, str) or value in plain
                assert known, f"a string is from the input: {value!r} in {call}"


def _with_dropped(case: Case, block: Block) -> str:
    """A pattern for the input of a block, which does not have all markers."""
    between = dropped(case["family"], reasoning=block["type"] == "reasoning")
    return between.join(map(escape, block["text"]))


def accounted_for(case: Case, blocks: list[Block]) -> None:
    """Without calls, all but prose is markers and white space. Channels have headers as well."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    if case.get("prefix") or case["finish_reason"] != FinishReason.STOP.value or calls:
        return
    frame = framing(case["family"], calls=_reads_calls(case))
    if frame is None:
        return
    gap, end = frame
    plain = [escape(block["text"]) for block in blocks]
    with_dropped = [_with_dropped(case, block) for block in blocks]
    patterns = [gap.join(["", *texts, end]) for texts in (plain, with_dropped)]
    fits = any(fullmatch(pattern, _source(case)) for pattern in patterns)
    assert fits, f"nothing is lost: {blocks} of {case['raw']!r}"


def _source(case: Case) -> str:
    """The text that blocks are from: with the prefix, and with what the prompt already contains and
    the family puts back."""
    consumed = ""
    if case["prompt_ends_in_reasoning"]:
        consumed = getattr(find_family(case["family"]).grammar, "consumed", "")
    return f"{consumed}{case.get('prefix', '')}{case['raw']}"


def _reads_calls(case: Case) -> bool:
    return bool(case["tools"]) and not case.get("calls_as_text")


def cut_off(case: Case, blocks: list[Block]) -> None:
    """A call that is complete after truncation is complete and equal in the full output."""
    calls = _complete_calls(blocks)
    at = chance_for(case["raw"]).randrange(len(case["raw"]) + 1)
    for text in {case["raw"][:at], case["raw"]}:
        early = _complete_calls(fold(run(opened(case), [text], FinishReason.LENGTH)))
        same = early == calls[: len(early)]
        assert same, f"a cut completes nothing: {early} at {text[-80:]!r}, later {calls}"


def _complete_calls(blocks: list[Block]) -> list[tuple[str, str, str]]:
    return [
        (block["name"], block["id"], block["text"])
        for block in blocks
        if block["type"] == "tool_use" and block["complete"]
    ]


def in_reasoning(steps: list[list[BlockEvent]], thoughts: list[bool]) -> None:
    """While a block is open, `in_reasoning` is True exactly for reasoning; reasoning tokens are
    counted by it.

    Not checked where a call stays open until the finish: with its end, reasoning after it is held
    back.
    """
    kind: BlockKind | None = None
    last = max((at for at, events in enumerate(steps) if events), default=-1)
    for at, (events, thought) in enumerate(zip(steps, thoughts, strict=True)):
        for event in events:
            if not isinstance(event, Delta):
                kind = event.kind if isinstance(event, BlockStart) else None
        if at > last and kind == "tool_use":
            return
        known = kind is None or thought == (kind == "reasoning")
        assert known, f"reasoning is known as such: {thought} in {kind}"

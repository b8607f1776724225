"""Pairs of families: the calls of one, the reasoning of another."""

from collections.abc import Iterable
from dataclasses import replace

from services.families.family import Family
from services.families.grammar.markup import Markup


class UnknownFamily(ValueError):
    """No family has this name, or two do not make a pair; the message lists candidates."""


def paired(calls: Family, reasoning: Family, known: Iterable[Family]) -> Family:
    """The family that reads `calls`' calls and `reasoning`'s reasoning; `calls` itself if its own reasoning is that.

    Its name is `CALLS+REASONING`. Raises UnknownFamily, with candidates among `known`, where either has none of what
    it is named for, or where reasoning is a message with a header of its own.
    """
    if calls.name == reasoning.name:
        return calls
    if not _reasons(reasoning):
        raise _unfit(f"{reasoning.name} reads no reasoning; reasoning is read by", filter(_reasons, known))
    if not _calls(calls) and _reasons(calls):
        raise _unfit(f"{calls.name} reads no tool calls; they are read by", filter(_calls, known))
    ours, theirs = calls.grammar, reasoning.grammar
    if not (isinstance(ours, Markup) and isinstance(theirs, Markup)):
        if type(ours) is type(theirs) and calls.think == reasoning.think:
            return calls
        fit = [f for f in known if _calls(f) and type(f.grammar) is type(theirs) and f.think == reasoning.think]
        if isinstance(theirs, Markup):
            fit = [f for f in known if _calls(f) and isinstance(f.grammar, Markup)]
        raise _unfit(f"{calls.name} cannot read the reasoning of {reasoning.name}, which goes with the calls of", fit)
    frames = tuple(dict.fromkeys((*ours.frames, *theirs.frames)))
    if (ours.think, ours.consumed, ours.frames) == (theirs.think, theirs.consumed, frames):
        return calls
    return calls.variant(
        f"{calls.name}+{reasoning.name}",
        f"calls of {calls.name}, reasoning of {reasoning.name}",
        grammar=replace(
            ours, think=theirs.think, consumed=theirs.consumed, frames=frames, framed=ours.framed or theirs.framed
        ),
        style=replace(
            calls.style,
            reasoning=reasoning.style.reasoning,
            text=reasoning.style.text if theirs.frames else calls.style.text,
        ),
        think=reasoning.think,
        stops=calls.stops,
        prompt_opens_reasoning=reasoning.prompt_opens_reasoning,
        markers=tuple(dict.fromkeys((*calls.markers, *reasoning.markers))),
        evidence=(),
    )


def _reasons(family: Family) -> bool:
    return bool(family.style.reasoning)


def _calls(family: Family) -> bool:
    return bool(family.style.call)


def _unfit(problem: str, candidates: Iterable[Family]) -> UnknownFamily:
    return UnknownFamily(f"{problem} {', '.join(family.name for family in candidates)}")

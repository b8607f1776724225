"""Finds model families by name: those in `catalog`, those that installed packages add, and pairs of
two families.

A package adds families through the entry point group `turnwire.families`, one entry point for each
`Family`:

    [project.entry-points."turnwire.families"]
    acme = "acme_turnwire:FAMILY"
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Final

from services.families import catalog
from services.families.family import VERBATIM, Family
from services.families.grammar.markup import Markup
from services.families.response_template import described_family

ENTRY_POINTS: Final = "turnwire.families"
PRECEDENCE: Final = (
    "qwen3_coder",
    "deepseek_v4",
    "glm47",
    "gpt_oss",
    "minimax_m2",
    "deepseek_v41",
    "nemotron_v3",
    "hermes",
    "glm45",
    "deepseek_v31",
    "step3p5",
    "poolside_v1",
    "olmo3",
)
"""Families that take precedence where several share an alias or markup. All others follow in order
of name."""


class UnknownFamily(ValueError):
    """No family has this name, or two do not make a pair; the message lists candidates."""


@cache
def families() -> Mapping[str, Family]:
    """Returns all families by name. A family from a package replaces the built-in one of the same
    name."""
    names = sorted((module.name for module in iter_modules(catalog.__path__)), key=_rank)
    built_in: list[Family] = [import_module(f"{catalog.__name__}.{name}").FAMILY for name in names]
    added: list[Family] = [point.load() for point in sorted(entry_points(group=ENTRY_POINTS))]
    return MappingProxyType({family.name: family for family in (*built_in, *added)})


def find_family(name: str) -> Family:
    """Finds a family by its own name, or by a name of its parser in vLLM, SGLang, Dynamo or
    TensorRT-LLM.

    Dashes and capitals do not matter. `CALLS+REASONING` names a pair: the calls of one family, the
    reasoning of another (see `find_reasoning_family`). `verbatim` reads raw completions. A JSON
    object is a `response_template`, the description of a format. Raises `UnknownFamily` for any
    other name, and for a pair that cannot be read, and `InvalidResponseTemplate`.
    """
    if name.startswith("{"):
        return described_family(name)
    calls, plus, reasoning = name.partition("+")
    if name == VERBATIM.name:
        return VERBATIM
    with_calls = _find(calls, _aliases("tool_parsers", "reasoning_parsers"))
    if not plus:
        return with_calls
    return _pair(with_calls.name, find_reasoning_family(reasoning).name)


def find_reasoning_family(name: str) -> Family:
    """Finds a family by the name of its reasoning parser. This is not always the result of
    `find_family`: several servers use one name for a tool parser and for the reasoning parser of
    another family. Raises `UnknownFamily`."""
    return _find(name, _aliases("reasoning_parsers", "tool_parsers"))


def _find(name: str, aliases: Mapping[str, Family]) -> Family:
    by_name = families()
    plain = _normalized(name)
    for spelling in (name, plain):
        match = by_name.get(spelling) or aliases.get(spelling)
        if match is not None:
            return match
    near = get_close_matches(plain, dict.fromkeys((*by_name, *aliases)), n=4, cutoff=0.65)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(by_name)}"
    raise UnknownFamily(f"no parser is called {name!r}; {hint}")


@cache
def _pair(calls_name: str, reasoning_name: str) -> Family:
    """Combines the calls of one family with the reasoning of another; returns the first if its
    reasoning is the same. Raises UnknownFamily, with candidates, if the first has reasoning but no
    calls, if the second has no reasoning, or if the reasoning is a message with its own header."""
    by_name = families()
    calls = by_name[calls_name]
    reasoning = by_name[reasoning_name]
    if calls.name == reasoning.name:
        return calls
    with_calls = [other for other in by_name.values() if other.style.call]
    if not reasoning.style.reasoning:
        problem = f"{reasoning.name} reads no reasoning; reasoning is read by"
        raise _no_pair(problem, [other for other in by_name.values() if other.style.reasoning])
    if calls.style.reasoning and not calls.style.call:
        raise _no_pair(f"{calls.name} reads no tool calls; they are read by", with_calls)
    if not _fit(calls, reasoning):
        names = f"{calls.name} cannot read the reasoning of {reasoning.name}"
        others = [other for other in with_calls if _fit(other, reasoning)]
        raise _no_pair(f"{names}, which goes with the calls of", others)
    if isinstance(calls.grammar, Markup) and isinstance(reasoning.grammar, Markup):
        return _combined(calls, calls.grammar, reasoning, reasoning.grammar)
    return calls


def _fit(calls: Family, reasoning: Family) -> bool:
    """Whether the grammar of one family can read the reasoning of the other: both mark it in
    running text, or both write messages with the same headers."""
    if type(calls.grammar) is not type(reasoning.grammar):
        return False
    return isinstance(calls.grammar, Markup) or calls.think == reasoning.think


def _combined(calls: Family, ours: Markup, reasoning: Family, theirs: Markup) -> Family:
    """The calls of one family with the reasoning of another."""
    frames = tuple(dict.fromkeys((*ours.frames, *theirs.frames)))
    if (ours.think, ours.consumed, ours.frames) == (theirs.think, theirs.consumed, frames):
        return calls
    return calls.variant(
        f"{calls.name}+{reasoning.name}",
        f"calls of {calls.name}, reasoning of {reasoning.name}",
        grammar=replace(
            ours,
            think=theirs.think,
            consumed=theirs.consumed,
            frames=frames,
            framed=ours.framed or theirs.framed,
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


def _no_pair(problem: str, candidates: Iterable[Family]) -> UnknownFamily:
    names = ", ".join(family.name for family in candidates)
    return UnknownFamily(f"{problem} {names}")


def _rank(name: str) -> tuple[int, str]:
    if name in PRECEDENCE:
        return PRECEDENCE.index(name), name
    return len(PRECEDENCE), name


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_")


@cache
def _aliases(*kinds: str) -> Mapping[str, Family]:
    """Collects the names from other servers; names of the first kind take precedence."""
    names: dict[str, Family] = {}
    for kind in kinds:
        for candidate in families().values():
            for alias in getattr(candidate, kind):
                names.setdefault(alias, candidate)
                names.setdefault(_normalized(alias), candidate)
    return MappingProxyType(names)

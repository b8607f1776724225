"""Finds model families by name: those in `catalog`, those that installed packages add, and pairs of
two families.

A package adds families through the entry point group `turnwire.families`, one entry point for each
`Family`:

    [project.entry-points."turnwire.families"]
    acme = "acme_turnwire:FAMILY"
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Final

from services.families import catalog
from services.families.family import Family
from services.families.grammar.markup import Markup
from services.families.response_template import described
from services.families.verbatim import VERBATIM

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
    return MappingProxyType({found.name: found for found in (*built_in, *added)})


def family(name: str) -> Family:
    """Finds a family by its own name, or by a name of its parser in vLLM, SGLang, Dynamo or
    TensorRT-LLM.

    Dashes and capitals do not matter. `CALLS+REASONING` names a pair: the calls of one family, the
    reasoning of another (see `reasoning_family`). `verbatim` reads raw completions. A JSON object
    is a `response_template`, the description of a format. Raises `UnknownFamily` for any other
    name, and for a pair that cannot be read, and `InvalidResponseTemplate`.
    """
    if name.startswith("{"):
        return described(name)
    calls, plus, reasoning = name.partition("+")
    if name == VERBATIM.name:
        return VERBATIM
    found = _find(calls, _aliases("tool_parsers", "reasoning_parsers"))
    return _pair(found.name, reasoning_family(reasoning).name) if plus else found


def reasoning_family(name: str) -> Family:
    """Finds a family by the name of its reasoning parser. This is not always the result of
    `family`: several servers use one name for a tool parser and for the reasoning parser of another
    family. Raises `UnknownFamily`."""
    return _find(name, _aliases("reasoning_parsers", "tool_parsers"))


def _find(name: str, aliases: Mapping[str, Family]) -> Family:
    by_name, plain = families(), _plain(name)
    found = by_name.get(name) or aliases.get(name) or by_name.get(plain) or aliases.get(plain)
    if found is None:
        near = get_close_matches(plain, dict.fromkeys((*by_name, *aliases)), n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(by_name)}"
        raise UnknownFamily(f"no parser is called {name!r}; {hint}")
    return found


@cache
def _pair(calls_name: str, reasoning_name: str) -> Family:
    """Combines the calls of one family with the reasoning of another; returns the first if its
    reasoning is the same. Raises UnknownFamily, with candidates, if the first has reasoning but no
    calls, if the second has no reasoning, or if the reasoning is a message with its own header."""
    by_name = families()
    calls, reasoning = by_name[calls_name], by_name[reasoning_name]
    if calls.name == reasoning.name:
        return calls
    if not _reasons(reasoning):
        raise _unfit(f"{reasoning.name} reads no reasoning; reasoning is read by", _reasons)
    if not _calls(calls) and _reasons(calls):
        raise _unfit(f"{calls.name} reads no tool calls; they are read by", _calls)
    ours, theirs = calls.grammar, reasoning.grammar
    if not (isinstance(ours, Markup) and isinstance(theirs, Markup)):
        if type(ours) is type(theirs) and calls.think == reasoning.think:
            return calls

        def fits(other: Family) -> bool:
            alike = isinstance(theirs, Markup) or other.think == reasoning.think
            return _calls(other) and type(other.grammar) is type(theirs) and alike

        raise _unfit(
            f"{calls.name} cannot read the reasoning of {reasoning.name}, which goes with the calls of",
            fits,
        )
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


def _reasons(family: Family) -> bool:
    return bool(family.style.reasoning)


def _calls(family: Family) -> bool:
    return bool(family.style.call)


def _unfit(problem: str, fits: Callable[[Family], bool]) -> UnknownFamily:
    return UnknownFamily(
        f"{problem} {', '.join(found.name for found in families().values() if fits(found))}"
    )


def _rank(name: str) -> tuple[int, str]:
    return (PRECEDENCE.index(name) if name in PRECEDENCE else len(PRECEDENCE)), name


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


@cache
def _aliases(*kinds: str) -> Mapping[str, Family]:
    """Collects the names from other servers; names of the first kind take precedence."""
    names: dict[str, Family] = {}
    for kind in kinds:
        for found in families().values():
            for alias in getattr(found, kind):
                names.setdefault(alias, found)
                names.setdefault(_plain(alias), found)
    return MappingProxyType(names)

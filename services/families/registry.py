"""Finds the model families: one module each in `catalog`, and those that installed packages add.

A package adds families through the entry point group `turnwire.families`, one entry point for each `Family`:

    [project.entry-points."turnwire.families"]
    acme = "acme_turnwire:FAMILY"
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Final

from services.families import catalog
from services.families.family import Family
from services.families.pairing import UnknownFamily, paired
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
"""Families that precede others of the same alias or markup: the first one has it. The rest follows in order of name."""


@cache
def families() -> Mapping[str, Family]:
    """All families by their own names. One that a package adds replaces the built-in one of the same name."""
    names = sorted((module.name for module in iter_modules(catalog.__path__)), key=_rank)
    built_in: list[Family] = [import_module(f"{catalog.__name__}.{name}").FAMILY for name in names]
    added: list[Family] = [point.load() for point in sorted(entry_points(group=ENTRY_POINTS))]
    return MappingProxyType({found.name: found for found in (*built_in, *added)})


def family(name: str) -> Family:
    """The family of this name: its own, or one under which vLLM, SGLang, Dynamo or TensorRT-LLM know its parser.

    Dashes and capitals do not matter. `CALLS+REASONING` names a pair: the calls of one family, the reasoning of
    another (see `reasoning_family`). `verbatim` reads raw completions. Raises `UnknownFamily` for any other name, and
    for a pair that cannot be read.
    """
    calls, plus, reasoning = name.partition("+")
    if plus:
        return _pair(family(calls).name, reasoning_family(reasoning).name)
    return VERBATIM if name == VERBATIM.name else _find(name, _aliases("tool_parsers", "reasoning_parsers"))


def reasoning_family(name: str) -> Family:
    """As `family`, for the name of a reasoning parser: several servers give one name to a tool parser and to the
    reasoning parser of another family. Raises `UnknownFamily`."""
    return _find(name, _aliases("reasoning_parsers", "tool_parsers"))


def _find(name: str, aliases: Mapping[str, Family]) -> Family:
    known, plain = families(), _plain(name)
    found = known.get(name) or aliases.get(name) or known.get(plain) or aliases.get(plain)
    if found is None:
        near = get_close_matches(plain, dict.fromkeys((*known, *aliases)), n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known)}"
        raise UnknownFamily(f"no parser is called {name!r}; {hint}")
    return found


@cache
def _pair(calls: str, reasoning: str) -> Family:
    known = families()
    return paired(known[calls], known[reasoning], known.values())


def _rank(name: str) -> tuple[int, str]:
    return (PRECEDENCE.index(name) if name in PRECEDENCE else len(PRECEDENCE)), name


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


@cache
def _aliases(*kinds: str) -> Mapping[str, Family]:
    """Other servers' names; those of the first kind take precedence."""
    names: dict[str, Family] = {}
    for kind in kinds:
        for found in families().values():
            for alias in getattr(found, kind):
                names.setdefault(alias, found)
                names.setdefault(_plain(alias), found)
    return MappingProxyType(names)

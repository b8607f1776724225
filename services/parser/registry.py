"""All families by name."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType

from services.parser.families import ALL
from services.parser.family import Family
from services.parser.verbatim import VERBATIM


class UnknownFamily(ValueError):
    """No family has this name; the message has the nearest ones."""


def families() -> Mapping[str, Family]:
    """All families, by their own names, most used first."""
    return _by_name()


def family(name: str) -> Family:
    """The family of this name: its own, or one under which vLLM, SGLang, Dynamo or TensorRT-LLM know its parser.
    `verbatim` is what raw completions are read with.

    Raises `UnknownFamily`, with the nearest names, for any other.
    """
    if name == VERBATIM.name:
        return VERBATIM
    found = _by_name().get(name) or _by_alias().get(name) or _by_alias().get(_plain(name))
    if found is None:
        known = [*_by_name(), *_by_alias()]
        near = get_close_matches(_plain(name), known, n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(_by_name())}"
        raise UnknownFamily(f"no parser is called {name!r}; {hint}")
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


@cache
def _by_name() -> Mapping[str, Family]:
    return MappingProxyType({f.name: f for f in ALL})


@cache
def _by_alias() -> Mapping[str, Family]:
    names: dict[str, Family] = {}
    for f in ALL:
        for alias in (*f.tool_parsers, *map(_plain, f.tool_parsers)):
            names.setdefault(alias, f)
    for f in ALL:
        for alias in (*f.reasoning_parsers, *map(_plain, f.reasoning_parsers)):
            names.setdefault(alias, f)
    return MappingProxyType(names)

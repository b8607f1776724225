"""Checks the grammars of freeform tools, as OpenAI does: with llguidance where it is installed, else roughly."""

import re
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec

from schemas.conversation import Grammar
from schemas.errors import Invalid

_KEPT = 256
_KEPT_CHARS = 16_384
_START = re.compile(r"^[ \t]*[?!]{0,2}start[ \t]*(?:\.\d+)?[ \t]*:", re.MULTILINE)


def checked_grammar(syntax: str, definition: str, place: str) -> Grammar:
    """The grammar. `place` is the field of its definition. Raises Invalid for one that is not valid."""
    find = _problem if len(definition) <= _KEPT_CHARS else _problem.__wrapped__
    if problem := find(syntax, definition):
        raise Invalid(f"Invalid value for '{place}': {problem}", param=place, code="invalid_value")
    return Grammar(syntax, definition)


@lru_cache(_KEPT)
def _problem(syntax: str, definition: str) -> str:
    """What is wrong with a grammar; "" if nothing is. Agents send the same one with every request."""
    if find_spec("llguidance") is None:
        return _rough_problem(syntax, definition)
    matcher = import_module("llguidance").LLMatcher
    make = matcher.grammar_from_lark if syntax == "lark" else matcher.grammar_from_regex
    first, *more = str(matcher.validate_grammar(make(definition))).splitlines() or [""]
    reason = next((line for line in more if line.startswith("error: ")), "")
    return f"{first} {reason}".strip()


def _rough_problem(syntax: str, definition: str) -> str:
    if syntax == "lark":
        return "" if _START.search(definition) else "no start rule found"
    try:
        re.compile(definition)
    except (re.error, RecursionError, OverflowError) as error:
        return f"regex parse error: {error}"
    return ""

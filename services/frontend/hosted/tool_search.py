"""Searches the deferred tools of a request: by a regular expression, or by words.

A search reads names, descriptions, and the names and descriptions of arguments, as Anthropic's tool
search does.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final
from unicodedata import normalize

import regex

from schemas.conversation import HostedKind, ToolSpec

MAX_FOUND: Final = 5
"""The most tools that a search returns, as Anthropic's."""
PATTERN_S: Final = 0.5
"""The most seconds that a regular expression may take: the model may write one that never ends."""
MAX_REPEATS: Final = 1000
"""The most repeats of a pattern's part, with those of the parts around it: each is compiled."""
_COUNT = re.compile(r"\{[\d,]*\}")
_NUMBER = re.compile(r"\d+")
_BRACE = re.compile(r"(?<!\\)\{(?![\d,]*\})")
"""A brace that `re` reads as text, and `regex` as a fuzzy match."""
_REPEATS: Final = 1.5
"""BM25's k1: how much a word counts that a tool repeats."""
_LENGTH_WEIGHT: Final = 0.75
"""BM25's b: how much a long description counts against a tool."""
_NAME_WEIGHT: Final = 3
"""How often the words of a name count: descriptions mention other tools."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+|[^\W\d_a-zA-Z]+")
_ACCENT = re.compile("[\u0300-\u036f]")
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Scripts without spaces between words, and Korean, which has particles after them."""


class InvalidPattern(ValueError):
    """A pattern is not a regular expression."""


def find_tools(kind: HostedKind, argument: str, tools: Sequence[ToolSpec]) -> list[str]:
    """Returns the names of the deferred tools that match, best first, at most `MAX_FOUND`.

    Raises InvalidPattern, and TimeoutError for a pattern that takes too long.
    """
    deferred = [tool for tool in tools if tool.deferred and tool.hosted is None]
    if kind == "tool_search_regex":
        return _matching(argument, deferred)
    return _ranked(argument, deferred)


def _matching(pattern: str, tools: Sequence[ToolSpec]) -> list[str]:
    """Returns the tools that a regular expression matches, first those with a matching name. Case
    does not count."""
    compiled = _compiled(pattern)
    names = [tool.rendered_name for tool in tools]
    texts = ["\n".join(_texts(tool)) for tool in tools]
    deadline = time.monotonic() + PATTERN_S
    by_name = _found_in(compiled, names, deadline)
    by_text = _found_in(compiled, texts, deadline)
    found = dict.fromkeys([*by_name, *by_text])
    return [names[index] for index in found][:MAX_FOUND]


def _compiled(pattern: str) -> "regex.Pattern[str]":
    """Compiles a pattern of Python's re. Raises InvalidPattern, also for what would need much
    memory or has no limit of time: many repeats, and what only `regex` knows, such as recursion."""
    counts = [max(map(int, _NUMBER.findall(count)), default=1) for count in _COUNT.findall(pattern)]
    if math.prod(max(count, 1) for count in counts) > MAX_REPEATS:
        raise InvalidPattern("too many repeats")
    if _BRACE.search(pattern):
        raise InvalidPattern("unknown syntax")
    try:
        re.compile(pattern)
        return regex.compile(pattern, regex.IGNORECASE)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise InvalidPattern(str(error)) from error


def _found_in(compiled: "regex.Pattern[str]", texts: Sequence[str], deadline: float) -> list[int]:
    """Returns the indices of the texts that match. Raises TimeoutError. `deadline`: of the
    monotonic clock, in seconds."""
    found: list[int] = []
    for index, text in enumerate(texts):
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        if compiled.search(text, timeout=seconds, concurrent=True):
            found.append(index)
    return found


def _ranked(query: str, tools: Sequence[ToolSpec]) -> list[str]:
    """Returns the tools that have words of a query, by BM25."""
    wanted = set(_words(query))
    counts = [_word_counts(tool) for tool in tools]
    scores = _scores(wanted, counts)
    order = sorted(range(len(tools)), key=lambda index: -scores[index])
    return [tools[index].rendered_name for index in order[:MAX_FOUND] if scores[index] > 0]


def _scores(wanted: set[str], counts: Sequence[Counter[str]]) -> list[float]:
    lengths = [count.total() for count in counts]
    average = sum(lengths) / len(counts) if counts else 0.0
    having = Counter(word for count in counts for word in wanted & count.keys())
    rarity = {
        word: math.log(1 + (len(counts) - number + 0.5) / (number + 0.5))
        for word, number in having.items()
    }
    scores = []
    for count, length in zip(counts, lengths, strict=True):
        norm = _REPEATS * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * length / (average or 1.0))
        score = 0.0
        for word in wanted & count.keys():
            score += rarity[word] * count[word] * (_REPEATS + 1) / (count[word] + norm)
        scores.append(score)
    return scores


def _word_counts(tool: ToolSpec) -> Counter[str]:
    names = [tool.rendered_name] * _NAME_WEIGHT
    return Counter(_words("\n".join([*names, *_texts(tool)])))


def _words(text: str) -> list[str]:
    """Returns the words of a text, without case, accents and a plural's ending; those of
    `snake_case` and `camelCase` are separate. In scripts without spaces, each character and each
    pair is a word."""
    if not text.isascii():
        text = normalize("NFC", _ACCENT.sub("", normalize("NFD", text)))
    words: list[str] = []
    for word in _WORD.findall(text):
        if _UNSPACED.match(word):
            words += [*word, *map("".join, pairwise(word))]
        else:
            words.append(_stem(word.lower()))
    return words


def _stem(word: str) -> str:
    if len(word) <= 3:
        return word
    if word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("ie"):
        return word[:-2] + "y"
    if word.endswith(("xe", "se", "ze", "che", "she")):  # of boxes as of caches
        return word[:-1]
    return word


def _texts(tool: ToolSpec) -> Iterator[str]:
    """Yields a tool's texts besides its name."""
    yield tool.description
    yield from _texts_of_arguments(tool.schema)


def _texts_of_arguments(schema: Any) -> Iterator[str]:
    """Yields the names and descriptions of arguments, nested ones included."""
    levels = [schema]
    while levels:
        level = levels.pop()
        if isinstance(level, list):
            levels += level
        if not isinstance(level, dict):
            continue
        properties = level.get("properties")
        if isinstance(properties, dict):
            yield from properties
        description = level.get("description")
        if isinstance(description, str):
            yield description
        levels += level.values()

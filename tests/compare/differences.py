"""Compares two recordings."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from tests.compare.normal import Event, Renamer, stream_events
from tests.compare.recording import Exchange

MISSING = "(missing)"
IGNORED_HEADERS = frozenset({"date", "content-length", "connection", "keep-alive"})
CACHED = (".cached_tokens", ".cache_read_input_tokens")
"""Counts that depend on what the cache has at that moment: on other sessions, and on what the
engine wrote after a turn that its parser ended."""
Place = tuple[str, str, str]
"""A path, what was there, and what is."""


@dataclass(frozen=True)
class Difference:
    """One place where a request's answer differs."""

    label: str
    id: str
    path: str
    base: str
    now: str


def compare(base: Sequence[Exchange], now: Sequence[Exchange]) -> list[Difference]:
    """The differences of two recordings."""
    found: list[Difference] = []
    answers = {one.id: one for one in now}
    for old in base:
        new = answers.pop(old.id, None)
        places = [("request", "sent", MISSING)] if new is None else _http(old, new)
        found += [Difference(old.label, old.id, *place) for place in places]
    found += [Difference(one.label, one.id, "request", MISSING, "sent") for one in answers.values()]
    return found


def _http(old: Exchange, new: Exchange) -> Iterator[Place]:
    was, now = Renamer(), Renamer()
    requests = was.text(old.request), now.text(new.request)
    if requests[0] != requests[1]:
        yield from _texts("request", *requests)
        return
    yield from _trees("status", old.status, new.status)
    yield from _trees("headers", _headers(old, was), _headers(new, now))
    if old.is_stream and new.is_stream:
        yield from _streams(stream_events(old.answer, was), stream_events(new.answer, now))
    else:
        yield from _texts("body", was.text(old.answer), now.text(new.answer))


def _headers(one: Exchange, names: Renamer) -> dict[str, str]:
    compared = sorted((name.lower(), value) for name, value in one.headers)
    return {name: names.text(value) for name, value in compared if name not in IGNORED_HEADERS}


def _streams(old: list[Event], new: list[Event]) -> Iterator[Place]:
    was, now = [event.name for event in old], [event.name for event in new]
    for kind, a, b, c, d in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        for left, right in zip_longest(old[a:b], new[c:d]):
            path = f"events.{(left or right).name}"
            if kind == "equal":
                yield from _texts(f"{path}.head", left.head, right.head)
                yield from _texts(path, left.data, right.data)
            else:
                yield path, left.data if left else MISSING, right.data if right else MISSING


def _texts(path: str, old: str, new: str) -> Iterator[Place]:
    """The differences of two texts: of their members, if both are JSON; else, or if only the
    spelling differs, the text around the first different character."""
    if old == new:
        return
    with contextlib.suppress(ValueError, RecursionError):
        trees = json.loads(old), json.loads(new)
        if trees[0] != trees[1]:
            yield from _trees(path, *trees)
            return
    at = next((n for n, (a, b) in enumerate(zip_longest(old, new)) if a != b), 0)
    around = slice(max(0, at - 60), at + 60)
    yield f"{path}.text", old[around], new[around]


def _trees(path: str, old: Any, new: Any) -> Iterator[Place]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _trees(f"{path}.{key}", old.get(key, MISSING), new.get(key, MISSING))
    elif isinstance(old, list) and isinstance(new, list):
        for number, (a, b) in enumerate(zip_longest(old, new, fillvalue=MISSING)):
            yield from _trees(f"{path}.{number}", a, b)
    elif type(old) is not type(new) or (old != new and not path.endswith(CACHED)):
        yield path, json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False)


def summary(found: Iterable[Difference], shown: int) -> str:
    """The first differences, one for each place."""
    lines: list[str] = []
    places: dict[tuple[str, str], list[Difference]] = {}
    for one in found:
        places.setdefault((one.label, re.sub(r"\.\d+(?=\.|$)", ".*", one.path)), []).append(one)
    for (label, path), same in list(places.items())[:shown]:
        lines += [f"\n{label} {path}: {len(same)} times, first in {same[0].id} at {same[0].path}"]
        lines += [f"  base: {same[0].base[:400]}", f"  now:  {same[0].now[:400]}"]
    return "\n".join([*lines, f"\n{len(places)} places differ"])

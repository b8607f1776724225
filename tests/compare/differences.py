"""Compares two recordings, and sorts out the differences that a file declares. Pure but for the
files it reads."""

import contextlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.compare.exchange import Exchange, is_stream
from tests.compare.normal import Event, Renamer, headers, stream_events

Json = Any
MISSING = "(missing)"
_AROUND = 60
_CACHED = (".cached_tokens", ".cache_read_input_tokens")
"""Counts that depend on what the cache has at that moment: on other sessions, and on what the
engine wrote after a turn that its parser ended."""


@dataclass(frozen=True)
class Difference:
    """One place where a request's answer differs."""

    label: str
    id: str
    path: str
    base: str
    now: str


@dataclass
class Declared:
    """The differences that are intended."""

    entries: list[dict[str, str]] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    @classmethod
    def load(cls, file: Path) -> "Declared":
        """Reads the file. Raises ValueError for an entry without path or reason."""
        document = tomllib.loads(file.read_text()) if file.exists() else {}
        found = cls(document.get("declared", []))
        for entry in found.entries:
            if not (entry.get("path") and entry.get("reason")):
                raise ValueError(f"{file}: {entry} needs path, reason")
        return found

    def has(self, one: Difference) -> bool:
        """Whether an entry matches: patterns of label, path and request, expressions in what it was
        and is."""
        for number, entry in enumerate(self.entries):
            if (
                fnmatchcase(one.path, entry["path"])
                and fnmatchcase(one.label, entry.get("label", "*"))
                and re.search(entry.get("base", ""), one.base, re.DOTALL)
                and re.search(entry.get("now", ""), one.now, re.DOTALL)
            ):
                self.used.add(number)
                return True
        return False


def compare(
    base: Sequence[Exchange], now: Sequence[Exchange], declared: Declared
) -> tuple[dict[str, list[int]], list[Difference]]:
    """Counts of requests compared and of requests that differ, by label; and the differences that
    are not declared."""
    counts: dict[str, list[int]] = {}
    found: list[Difference] = []
    answers = {one.id: one for one in now}
    for old in base:
        new = answers.pop(old.id, None)
        if new is None:
            differences = [Difference(old.label, old.id, "request", "sent", MISSING)]
        else:
            differences = [Difference(old.label, old.id, *rest) for rest in _http(old, new)]
        left = [one for one in differences if not declared.has(one)]
        count = counts.setdefault(old.label, [0, 0])
        count[0] += 1
        count[1] += bool(left)
        found += left
    found += [Difference(one.label, one.id, "request", MISSING, "sent") for one in answers.values()]
    return counts, found


def _http(old: Exchange, new: Exchange) -> Iterator[tuple[str, str, str]]:
    names = Renamer(), Renamer()
    sides = list(zip((old, new), names, strict=True))
    requests = [name.text(f"{row.method} {row.path} {row.request}") for row, name in sides]
    if requests[0] != requests[1]:
        yield from _texts("request", requests[0], requests[1])
        return
    yield from _trees("status", old.status, new.status)
    sent = [dict(sorted(headers(row.headers, name).items())) for row, name in sides]
    yield from _trees("headers", sent[0], sent[1])
    if is_stream(old.headers) and is_stream(new.headers):
        events = [stream_events(row.answer, name) for row, name in sides]
        yield from _streams(events[0], events[1])
    else:
        answers = [name.text(row.answer) for row, name in sides]
        yield from _texts("body", answers[0], answers[1])


def _streams(old: list[Event], new: list[Event]) -> Iterator[tuple[str, str, str]]:
    if old == new:
        return
    for kind, a, b, c, d in SequenceMatcher(
        None, [e.name for e in old], [e.name for e in new], autojunk=False
    ).get_opcodes():
        for left, right in zip_longest(old[a:b], new[c:d]):
            if kind == "equal":
                path = f"events.{left.name}"
                yield from _trees(f"{path}.head", left.head, right.head)
                yield from _texts(path, left.data, right.data)
            else:
                name = (left or right).name
                yield (
                    f"events.{name}",
                    left.data if left else MISSING,
                    right.data if right else MISSING,
                )


def _texts(path: str, old: str, new: str) -> Iterator[tuple[str, str, str]]:
    """The differences of two texts: of their members, if both are JSON; else, or if only the
    spelling differs, the text around the first different character."""
    if old == new:
        return
    with contextlib.suppress(ValueError, RecursionError):
        trees = json.loads(old), json.loads(new)
        found = list(_trees(path, *trees))
        if found or trees[0] != trees[1]:  # otherwise only the spelling differs
            yield from found
            return
    at = next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    start = max(0, at - _AROUND)
    yield f"{path}.text", old[start : at + _AROUND], new[start : at + _AROUND]


def _trees(path: str, old: Json, new: Json) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                values = [_shown(side[key]) if key in side else MISSING for side in (old, new)]
                yield f"{path}.{key}", values[0], values[1]
            else:
                yield from _trees(f"{path}.{key}", old[key], new[key])
        common = [[key for key in a if key in b] for a, b in ((old, new), (new, old))]
        if common[0] != common[1]:
            yield f"{path}.order", _shown(common[0]), _shown(common[1])
    elif isinstance(old, list) and isinstance(new, list):
        if all(isinstance(item, int) for item in [*old, *new]) and old != new:
            at = next(
                (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
                min(len(old), len(new)),
            )
            parts = [f"{len(side)} numbers, from {at}: {side[at : at + 12]}" for side in (old, new)]
            yield path, parts[0], parts[1]
            return
        for number, (a, b) in enumerate(zip_longest(old, new, fillvalue=MISSING)):
            yield from _trees(f"{path}.{number}", a, b)
    elif type(old) is not type(new) or (old != new and not path.endswith(_CACHED)):
        yield path, _shown(old), _shown(new)


def _shown(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def summary(counts: dict[str, list[int]], found: Iterable[Difference], shown: int) -> str:
    """A line for each label, and the first differences, one for each place."""
    lines = [
        f"{label:24} {total:6} compared {different:6} differ"
        for label, (total, different) in counts.items()
    ]
    places: dict[tuple[str, str], list[Difference]] = {}
    for one in found:
        places.setdefault((one.label, re.sub(r"\.\d+(?=\.|$)", ".*", one.path)), []).append(one)
    for (label, path), same in list(places.items())[:shown]:
        lines += [f"\n{label} {path}: {len(same)} times, first in {same[0].id} at {same[0].path}"]
        lines += [f"  base: {same[0].base[:400]}", f"  now:  {same[0].now[:400]}"]
    if len(places) > shown:
        lines.append(f"\n{len(places) - shown} more places")
    return "\n".join(lines)

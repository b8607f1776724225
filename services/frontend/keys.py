"""The file of API keys. Pure.

One key a line: its name and the SHA-256 of its text, then what it may, if that is not what every key may:

    team-a:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef
    ci:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 concurrency=4 rpm=60 models=small-*,coder

    concurrency=N   requests of this key that are answered at once
    rpm=N           requests a minute
    tpm=N           tokens a minute: of prompts, as far as they were not cached, and of answers
    models=A,B*     the only models that it may use, by any of their names; `*` and `?` as in file names
    expires=DATE    the key is accepted until then: 2027-01-31 (its first moment) or 2027-01-31T18:00Z, UTC
    priority=N      of all its turns, whatever their requests say

`none` for a number lifts a limit that holds for all keys. The name may be left out; lines that are empty or begin with
`#` are skipped. Several lines of one name are keys of one holder, who has one allowance.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from schemas.control import ModelCard

_LINE = re.compile(r"(?:(?P<name>[A-Za-z0-9._@-]+):)?(?P<digest>[0-9a-fA-F]{64})(?P<options>(?:\s+\S+)*)")


class Limits(Struct, frozen=True):
    """What one holder may use at once and in a minute; None: as much as there is."""

    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Key(Struct, frozen=True):
    """An accepted key: who has it, its SHA-256, and what it may."""

    name: str
    digest: bytes
    limits: Limits = Limits()
    models: tuple[str, ...] = ()
    """Patterns of names; empty: every model."""
    expires: float | None = None
    """Unix time from which it is accepted no more."""
    priority: int | None = None

    def allows(self, card: ModelCard) -> bool:
        """Whether the key may use a model. One of its names is enough: the right is to the model, not to a spelling."""
        names = (card.name, *card.aliases)
        return not self.models or any(fnmatchcase(name, pattern) for pattern in self.models for name in names)


def parse_keys(text: str, source: str, defaults: Limits) -> list[Key]:
    """The keys of a file's text; `defaults` hold where a line says nothing.

    Raises ValueError, naming source and line, for a line that is no key and for no key at all.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise ValueError(f"{source}:{number}: not a key; write `name:` and the key's SHA-256 in hex")
        name = match["name"] or match["digest"][:8].lower()
        try:
            keys.append(_key(name, bytes.fromhex(match["digest"]), match["options"].split(), defaults))
        except ValueError as error:
            raise ValueError(f"{source}:{number}: {error}") from None
    if not keys:
        raise ValueError(f"{source} holds no keys")
    _agree(keys, source)
    return keys


def _agree(keys: list[Key], source: str) -> None:
    limits: dict[str, Limits] = {}
    for key in keys:
        if limits.setdefault(key.name, key.limits) != key.limits:
            raise ValueError(f"{source}: the lines of {key.name} have different limits; its keys share one allowance")


def _key(name: str, digest: bytes, options: list[str], defaults: Limits) -> Key:
    limits: dict[str, int | None] = {}
    rest: dict[str, Any] = {}
    for option in options:
        word, equals, value = option.partition("=")
        if not equals or not value or (word not in _LIMITS and word not in _REST):
            known = ", ".join((*_LIMITS, *_REST))
            raise ValueError(f"{option!r} is no option of a key; there are {known}, each with = and a value")
        if word in _LIMITS:
            limits[_LIMITS[word]] = None if value == "none" else _positive(word, value)
        else:
            rest[word] = _REST[word](value)
    return Key(name, digest, replace(defaults, **limits), **rest)


def _positive(word: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{word}={value}: a whole number from 1, or none")
    return int(value)


def _models(value: str) -> tuple[str, ...]:
    return tuple(pattern for pattern in value.split(",") if pattern)


def _moment(value: str) -> float:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"expires={value}: a date as 2027-01-31, or a time as 2027-01-31T18:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _integer(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"priority={value}: a whole number") from None


_LIMITS: Mapping[str, str] = {
    "concurrency": "concurrency",
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
}
_REST: Mapping[str, Callable[[str], Any]] = {"models": _models, "expires": _moment, "priority": _integer}

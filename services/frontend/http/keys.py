"""Parses the file of API keys.

One key a line: its name and the SHA-256 of its text, then its options:

    team-a:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef
    ci:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 concurrency=4 rpm=60
    models=small-*,coder

    concurrency=N   concurrent requests
    rpm=N           requests per minute
    tpm=N           tokens per minute: of prompts without their cached part, and of answers
    models=A,B*     the models that the key may use, by any of their names; `*` and `?` as in file
                    names. A LoRA adapter has names of its own (`coder:sql`, `sql`)
    expires=DATE    from when on the key is refused: 2027-01-31 (the start of the day, UTC) or
                    2027-01-31T18:00Z
    priority=N      priority of all turns of the key, whatever their requests set
    operator=yes    the key may pause engines and change their weights (`/engines`), and read what
                    all keys have used

`none` in place of a number lifts a limit that is set for all keys. The name may be left out. Empty
lines and lines that begin with `#` are skipped. Several lines with one name are keys of one holder
and share its limits.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from schemas.control import ModelCard

_LINE = re.compile(
    r"(?:(?P<name>[A-Za-z0-9._@-]+):)?(?P<digest>[0-9a-fA-F]{64})(?P<options>(?:\s+\S+)*)"
)


class Limits(Struct, frozen=True):
    """The limits of one key holder; None: unlimited."""

    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Key(Struct, frozen=True):
    """An API key: its holder, its SHA-256 and its rights."""

    name: str
    digest: bytes
    limits: Limits = Limits()
    models: tuple[str, ...] = ()
    """Patterns of names; empty: every model."""
    expires: float | None = None
    """Unix time from which the key is refused."""
    priority: int | None = None
    operator: bool = False

    def allows(self, card: ModelCard) -> bool:
        """Returns whether the key may use a model. One matching name is enough."""
        if not self.models:
            return True
        names = (card.served_name, *card.aliases)
        return any(fnmatchcase(*pair) for pair in product(names, self.models))


def parse_keys(text: str, source: str, defaults: Limits) -> list[Key]:
    """Parses a key file's text. `defaults`: the limits of lines without limits.

    Raises ValueError, with source and line, for a malformed line, and if keys of one name have
    different limits.
    """
    keys: list[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            keys.append(parse_key(stripped, defaults))
        except ValueError as error:
            raise ValueError(f"{source}:{number}: {error}") from None

    limits: dict[str, Limits] = {}
    for key in keys:
        if limits.setdefault(key.name, key.limits) != key.limits:
            raise ValueError(
                f"{source}: the lines of {key.name} have different limits; "
                "its keys share one allowance"
            )
    return keys


def parse_key(line: str, defaults: Limits) -> Key:
    """Parses a line with a key. Raises ValueError."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("not a key; write `name:` and the key's SHA-256 in hex")
    digest = match["digest"]
    name = match["name"] or digest[:8].lower()
    return _key(name, bytes.fromhex(digest), match["options"].split(), defaults)


def _key(name: str, digest: bytes, options: list[str], defaults: Limits) -> Key:
    limits: dict[str, int | None] = {}
    rights: dict[str, Any] = {}
    for option in options:
        word, _, value = option.partition("=")
        if not value or (word not in _LIMITS and word not in _RIGHTS):
            names = ", ".join((*_LIMITS, *_RIGHTS))
            raise ValueError(
                f"{option!r} is not an option of a key; the options are {names}, "
                "each with = and a value"
            )
        if word in _RIGHTS:
            rights[word] = _RIGHTS[word](value)
        elif value == "none":
            limits[_LIMITS[word]] = None
        elif value.isdecimal() and int(value) >= 1:
            limits[_LIMITS[word]] = int(value)
        else:
            raise ValueError(f"{word}={value}: a whole number from 1, or none")
    return Key(name, digest, replace(defaults, **limits), **rights)


def _models(value: str) -> tuple[str, ...]:
    return tuple(pattern for pattern in value.split(",") if pattern)


def _time(value: str) -> float:
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(
            f"expires={value}: a date as 2027-01-31, or a time as 2027-01-31T18:00Z"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return time.timestamp()


def _integer(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"priority={value}: a whole number") from None


def _yes(value: str) -> bool:
    if value != "yes":
        raise ValueError(f"operator={value}: only yes")
    return True


_LIMITS: Mapping[str, str] = {
    "concurrency": "concurrency",
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
}
_RIGHTS: Mapping[str, Callable[[str], Any]] = {
    "models": _models,
    "expires": _time,
    "priority": _integer,
    "operator": _yes,
}

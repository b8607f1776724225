"""A client's settings file: read, merged into, backed up, written whole. What is not understood is not touched."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from msgspec import Struct
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from services.cli.clients.base import Settings


class Unreadable(Exception):
    """The file holds something else than was expected, and was left as it is."""


class Written(Struct, frozen=True):
    """What became of a file."""

    path: Path
    changed: list[str]
    """`key: was X` for each value that was there and is another now."""
    backup: Path | None
    """Where the file lies as it was; None: there was none, or nothing had to change."""
    untouched: bool = False
    """All was there already."""


def text_of(settings: Settings) -> str:
    """The settings alone, as they would stand in a new file."""
    values = merged(merged({}, settings.if_absent), settings.values)
    return tomlkit.dumps(values) if settings.kind == "toml" else json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def write(settings: Settings) -> Written:
    """Merges settings into their file. Raises OSError, or Unreadable where it is not what it should be."""
    path = Path(settings.path).expanduser()
    if path.is_symlink():  # into a repository of dotfiles, perhaps: the link stays
        path = path.resolve()
    before = path.read_text(encoding="utf-8") if path.exists() else None
    document = _read(settings, before, path)
    changed = sorted(_changes(document, settings.values))
    after = _render(settings, document)
    if after == before:
        return Written(path, [], None, untouched=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    backup = None if before is None else _back_up(path)
    _replace(path, after)
    return Written(path, changed, backup)


def merged(into: Any, values: Mapping[str, Any], *, keep: bool = False) -> Any:
    """`into` with `values` in it, table by table; `keep`: what is there stays. `into` is changed and returned."""
    for key, value in values.items():
        held = into.get(key)
        if isinstance(held, dict) and isinstance(value, Mapping):
            merged(held, value, keep=keep)
        elif not keep or key not in into:
            into[key] = value
    return into


def _read(settings: Settings, text: str | None, path: Path) -> Any:
    if text is None or settings.whole or not text.strip():
        return tomlkit.document() if settings.kind == "toml" else {}
    try:
        document: Any = tomlkit.parse(text) if settings.kind == "toml" else json.loads(text)
    except TOMLKitError as error:
        raise Unreadable(f"{path} is no TOML ({error}); it was left as it is") from None
    except ValueError as error:
        raise Unreadable(
            f"{path} is no plain JSON, perhaps because of its comments ({error}); it was left as it is: "
            "add by hand what is shown without --write"
        ) from None
    if not isinstance(document, dict):
        raise Unreadable(f"{path} holds no settings; it was left as it is")
    return document


def _render(settings: Settings, document: Any) -> str:
    _remove(document, settings.remove)
    merged(document, settings.if_absent, keep=True)
    merged(document, settings.values)
    if settings.kind == "toml":
        return tomlkit.dumps(document)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _remove(document: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        held = document.get(key)
        if isinstance(held, dict) and isinstance(value, Mapping):
            _remove(held, value)
        elif key in document and value in (None, held):
            del document[key]


def _changes(document: Mapping[str, Any], values: Mapping[str, Any], above: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        if key not in document:
            continue
        held = document[key]
        if isinstance(held, dict | Table) and isinstance(value, Mapping):
            found += _changes(held, value, f"{above}{key}.")
        elif held != value:
            found.append(f"{above}{key}" + ("" if _secret(key) else f": was {json.dumps(held, default=str)[:80]}"))
    return found


def _secret(key: str) -> bool:
    return any(word in key.lower() for word in ("token", "key", "secret")) and not key.endswith("_TOKENS")


def _back_up(path: Path) -> Path:
    """A copy that no later run overwrites."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        backup = path.with_name(f"{path.name}.{stamp}{f'-{number}' if number else ''}.bak")
        with contextlib.suppress(FileExistsError):
            _create(backup, path.read_bytes(), path.stat().st_mode & 0o777)
            return backup
    raise FileExistsError(f"there are a thousand backups of {path}")


def _replace(path: Path, text: str) -> None:
    """A reader sees the old file or the new one. A new file may hold a key: for its owner only."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    _create(partial, text.encode(), mode)
    partial.replace(path)


def _create(path: Path, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)

"""Merges settings into a client's JSON or TOML file, after copying it. Does not change a file that it cannot parse.

The settings may contain a key, so only the owner can read the file and its copy afterwards."""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from services.cli.common import CommandError, create_file, make_private, read_text, replace_file
from services.cli.connect.client import Settings


class UnreadableFile(CommandError):
    """The file cannot be parsed, and is unchanged."""


def text_of(settings: Settings) -> str:
    """Returns the settings as the text of a new file."""
    return _render(settings, _parse(settings, "", Path()))


def write(settings: Settings) -> list[str]:
    """Merges settings into their file. Returns lines that describe the changes. Raises OSError or UnreadableFile."""
    path = _follow_links(Path(settings.path).expanduser())
    before = read_text(path) if path.exists() else None
    document = _parse(settings, before or "", path)
    changed = sorted(_changes(document, settings.values))
    after = _render(settings, document)
    if after == before:
        make_private(path)  # it may contain a key
        return [f"{path}: unchanged"]
    path.parent.mkdir(parents=True, exist_ok=True)
    backup = "" if before is None else f"; the copy of the old file is {_back_up(path)}"
    replace_file(path, after.encode())
    return [f"{path}: written{backup}", *(f"  {change}" for change in changed)]


def _follow_links(path: Path) -> Path:
    """Returns the file that links lead to, so that they stay: they may lead into a repository of dotfiles.

    Raises OSError for a loop, and CommandError where they lead into a folder of another user, who would get the key.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        real = Path(os.path.realpath(path))
    folder = next(folder for folder in real.parents if folder.exists())
    if real != Path(os.path.abspath(path)) and folder.stat().st_uid != os.getuid():
        raise CommandError(f"{path} is a link to {real}, in a folder of another user; it is unchanged")
    return real


def _parse(settings: Settings, text: str, path: Path) -> Any:
    if settings.whole or not text.strip():
        return tomlkit.document() if settings.kind == "toml" else {}
    try:
        document: Any = tomlkit.parse(text) if settings.kind == "toml" else json.loads(text)
    except TOMLKitError as error:
        raise UnreadableFile(f"{path} is not TOML ({error}); it is unchanged") from None
    except ValueError as error:
        raise UnreadableFile(
            f"{path} is not plain JSON, perhaps because of comments ({error}); it is unchanged: "
            "add the settings that are shown without --write by hand"
        ) from None
    if not isinstance(document, dict):
        raise UnreadableFile(f"{path} has no settings; it is unchanged")
    return document


def _render(settings: Settings, document: Any) -> str:
    _remove(document, settings.remove)
    _merge(document, settings.if_absent, keep=True)
    _merge(document, settings.values)
    if settings.kind == "toml":
        return tomlkit.dumps(document)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _merge(into: Any, values: Mapping[str, Any], *, keep: bool = False) -> None:
    """Merges `values` into `into`, table by table. `keep`: do not replace existing values."""
    for key, value in values.items():
        if isinstance(into.get(key), dict) and isinstance(value, Mapping):
            _merge(into[key], value, keep=keep)
        elif not keep or key not in into:
            into[key] = value


def _remove(document: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        old = document.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            _remove(old, value)
        elif key in document and value in (None, old):
            del document[key]


def _changes(document: Mapping[str, Any], values: Mapping[str, Any], above: str = "") -> list[str]:
    changes = []
    for key in values.keys() & document.keys():
        old, value = document[key], values[key]
        if isinstance(old, dict) and isinstance(value, Mapping):
            changes += _changes(old, value, f"{above}{key}.")
        elif old != value:
            secret = any(word in key.lower() for word in ("token", "key", "secret")) and not key.endswith("_TOKENS")
            changes.append(f"{above}{key}" + ("" if secret else f": was {json.dumps(old, default=str)[:80]}"))
    return changes


def _back_up(path: Path) -> Path:
    """Copies the file to a name that does not exist yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count():
        backup = path.with_name(f"{path.name}.{stamp}{f'-{number}' if number else ''}.bak")
        with contextlib.suppress(FileExistsError):
            create_file(backup, path.read_bytes())
            break
    return backup

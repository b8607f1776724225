"""Merges settings into a client's file, after copying it, and takes them out again. Does not change
a file that it cannot parse.

The settings may contain a key, so only the owner can read the file and its copies.
`FILE.turnwire-undo` has what `undo` needs."""

import contextlib
import itertools
import json
import math
import os
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
import yaml
from msgspec import Struct
from tomlkit.exceptions import TOMLKitError

from services.cli.common import CommandError, UsageError
from services.cli.connect.client import ClientSettings, FileKind
from services.cli.connect.private_folder import PRIVATE, PrivateFolder, open_folder_of

UNDO_SUFFIX = ".turnwire-undo"
_NAMES: dict[FileKind, str] = {
    "json": "plain JSON",
    "toml": "TOML",
    "yaml": "plain YAML",
    "env": "a list of variables",
}
_ABSENT = object()


class UnreadableFile(CommandError):
    """The file cannot be parsed, and is unchanged."""


class UndoRecord(Struct, frozen=True):
    """The data for `undo`: the file without our settings, and with them."""

    before: str | None
    """None: there was no file."""
    mode: int
    """The mode of the file before; 0o600 if there was none."""
    after: str
    """The text that `write` wrote."""
    copies: list[str]
    """Names of the copies of the old file."""
    folders: list[str]
    """The folders that `write` created, outermost first."""
    replaced: str | None = None
    """The text before the last `write`, which the file still has if that was killed."""


def text_of(settings: ClientSettings) -> str:
    """The settings as the text of a new file."""
    return _render(settings, _load(settings.kind, "", Path()))


def write(settings: ClientSettings) -> list[str]:
    """Merges settings into their file. Returns lines that describe the changes. Raises OSError or
    UnreadableFile."""
    with open_folder_of(Path(settings.path).expanduser(), create=True) as (folder, name):
        path = folder.path / name
        before, mode = _read(folder, name)
        earlier = before or ""
        document = _load(settings.kind, "" if settings.whole else earlier, path)
        changed = sorted(_changes(document, settings.values))
        after = _render(settings, document)
        if after == before and not mode & 0o077:
            return [f"{path}: unchanged"]
        record = _read_record(folder, name) or UndoRecord(before, mode, "", [], folder.created)
        try:
            clean, mode = _without_ours(settings.kind, record, (before, mode), path)
        except CommandError:  # an edit cannot be distinguished from our settings: both stay
            clean = before
            mode = PRIVATE
        copies = [] if before is None else [_back_up(folder, name, before)]
        record = UndoRecord(
            before=clean,
            mode=mode,
            after=after,
            copies=[*record.copies, *copies],
            folders=record.folders,
            replaced=before,
        )
        folder.replace(name + UNDO_SUFFIX, msgspec.json.encode(record))
        folder.replace(name, after.encode())
    written = f"{path}: written"
    if copies:
        written += f"; the copy of the old file is {path.with_name(copies[0])}"
    return [written, *(f"  {change}" for change in changed)]


def undo(*files: ClientSettings) -> list[str]:
    """Restores what was in files and their modes before the first `write`. Where the user has
    changed a file since, takes out our settings only. Returns lines for the user; none, if `write`
    has written none of the files.

    Raises OSError, UnreadableFile, or CommandError where a user's edit would be lost; that file is
    then unchanged.
    """
    lines: list[str] = []
    folders: list[str] = []
    for settings in files:
        place = Path(settings.path).expanduser()
        with (
            contextlib.suppress(FileNotFoundError),
            open_folder_of(place, create=False) as (folder, name),
        ):
            record = _read_record(folder, name)
            if record is None:
                continue
            path = folder.path / name
            clean = _without_ours(settings.kind, record, _read(folder, name), path)
            lines.append(f"{path}: {_restore(folder, name, record, clean)}")
            folders += record.folders
    for created in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):  # it has other files
            os.rmdir(created)
    return lines


def _restore(
    folder: PrivateFolder, name: str, record: UndoRecord, clean: tuple[str | None, int]
) -> str:
    """Gives a file the text and mode that it has without our settings, and removes what `write`
    left beside it. Returns what became of the file."""
    text, mode = clean
    copies = record.copies
    if text is not None:
        folder.replace(name, text.encode(), mode)
        outcome = "without our settings; your changes stay"
        if text == record.before:
            outcome = "as before"
    elif record.before is None:
        folder.remove(name)
        outcome = "removed"
    else:  # the user has removed it; only the copies have the old text
        outcome = f"you have removed it; its old text is in {copies[0]}"
        copies = []
    for extra in (*copies, name + UNDO_SUFFIX):
        folder.remove(extra)
    return outcome


def _read(folder: PrivateFolder, name: str) -> tuple[str | None, int]:
    """A file's text and mode. Raises UsageError if it is not UTF-8; OSError."""
    stored = folder.read(name)
    if stored is None:
        return None, PRIVATE
    data, mode = stored
    try:
        return data.decode(), mode
    except UnicodeDecodeError as error:
        raise UsageError(f"{folder.path / name} is not a text file: {error}") from None


def _read_record(folder: PrivateFolder, name: str) -> UndoRecord | None:
    stored = folder.read(name + UNDO_SUFFIX)
    try:
        return stored and msgspec.json.decode(stored[0], type=UndoRecord)
    except msgspec.DecodeError as error:
        raise CommandError(
            f"{folder.path / name}{UNDO_SUFFIX} is damaged ({error}); remove it"
        ) from None


def _without_ours(
    kind: FileKind, record: UndoRecord, current: tuple[str | None, int], path: Path
) -> tuple[str | None, int]:
    """The text and mode that the file has without our settings; None: it does not exist. The mode
    stays where the user has changed the file: a copy of the key may be in it."""
    text, mode = current
    if text is None:
        return current
    restored = (record.before, record.mode if mode == PRIVATE else mode)
    if text in (record.after, record.before, record.replaced):
        return restored

    now = _load(kind, text, path)
    before = _load(kind, record.before or "", path)
    after = _load(kind, record.after, path)
    _take_out(now, before, after)
    clean = _dump(kind, now)
    if kind == "toml":
        _check_lines(text, clean, record, path)
        unchanged = clean == (record.before or "")
    else:  # a client may have written it in another layout
        unchanged = _same(now, before)
    return restored if unchanged else (clean, mode)


def _check_lines(text: str, clean: str, record: UndoRecord, path: Path) -> None:
    """Raises CommandError if a line of the user's would be lost."""
    known = {*clean.splitlines(), *record.after.splitlines()}
    for line in text.splitlines():
        if line.strip() and line not in known:
            raise CommandError(
                f"{path} is unchanged: it has your line {line.strip()!r} within our settings; "
                "move it first"
            )


def _take_out(now: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Puts the values of `before` back where `now` still has those of `after`."""
    for key in {**after, **before}:
        old = before.get(key, _ABSENT)
        ours = after.get(key, _ABSENT)
        current = now.get(key, _ABSENT)
        if _same(old, ours):
            continue
        if not _same(current, ours):
            if not isinstance(current, dict) or not isinstance(ours, Mapping):
                continue  # the user's value
            was_table = isinstance(old, Mapping)
            _take_out(current, old if was_table else {}, ours)
            if current or was_table:
                continue
        if old is _ABSENT:
            del now[key]
        else:
            now[key] = old


def _same(left: Any, right: Any) -> bool:
    """Whether two values are the same, where 1 is not true."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            _same(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and bool(left == right)


def _load(kind: FileKind, text: str, path: Path) -> Any:
    if not text.strip():
        return tomlkit.document() if kind == "toml" else {}
    try:
        document = _parse(kind, text)
    except (ValueError, RecursionError, TOMLKitError, yaml.YAMLError) as error:
        known = kind == "toml" or type(error) is ValueError  # found here, not by a parser
        why = "" if known else ", perhaps because of comments"
        why += f" ({' '.join(str(error).split())})"
        remedy = "add or remove by hand the settings that are shown without --write"
        raise UnreadableFile(
            f"{path} is not {_NAMES[kind]}{why}; it is unchanged: {remedy}"
        ) from None
    if not isinstance(document, dict):
        raise UnreadableFile(f"{path} has no settings; it is unchanged")
    return document


def _parse(kind: FileKind, text: str) -> Any:
    match kind:
        case "toml":
            return tomlkit.parse(text)
        case "yaml":
            return _parse_yaml(text)
        case "env":
            return _parse_exports(text)
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(number: str) -> float:
    value = float(number)
    if math.isfinite(value):
        return value
    raise ValueError(f"its number {number} would become another")


def _parse_yaml(text: str) -> Any:
    if re.search(r"(^|\s)#", text):  # they would be lost
        raise ValueError("it has comments")
    # An alias may be of a value that contains itself.
    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
        raise ValueError("it has aliases")
    return yaml.safe_load(text)


def _parse_exports(text: str) -> dict[str, str]:
    exports = re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE)
    document = {name: "".join(shlex.split(value)) for name, value in exports}
    if _dump("env", document) != text:
        raise ValueError("it has more than exports")
    return document


def _dump(kind: FileKind, document: Any) -> str:
    match kind:
        case "toml":
            return tomlkit.dumps(document)
        case "yaml":
            return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        case "env":
            return "".join(
                f"export {name}={shlex.quote(value)}\n" for name, value in document.items()
            )
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace").decode()  # half a surrogate pair, as its escape


def _render(settings: ClientSettings, document: Any) -> str:
    _remove(document, settings.remove)
    if not document:
        _merge(document, settings.new_file)
    _merge(document, settings.if_absent, keep=True)
    _merge(document, settings.values)
    return _dump(settings.kind, document)


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
        old = document[key]
        value = values[key]
        if isinstance(old, dict) and isinstance(value, Mapping):
            changes += _changes(old, value, f"{above}{key}.")
        elif old != value:
            change = f"{above}{key}"
            if not _is_secret(key):
                change += f": was {json.dumps(old, default=str, skipkeys=True)[:80]}"
            changes.append(change)
    return changes


def _is_secret(key: str) -> bool:
    if key.endswith("_TOKENS"):
        return False
    return any(word in key.lower() for word in ("token", "key", "secret"))


def _back_up(folder: PrivateFolder, name: str, text: str) -> str:
    """Copies the file to a name that does not exist yet, and returns it."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count():
        suffix = f"-{number}" if number else ""
        backup = f"{name}.{stamp}{suffix}.bak"
        with contextlib.suppress(FileExistsError):
            folder.create(backup, text.encode())
            break
    return backup

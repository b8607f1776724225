"""Writes JSON in templates: the filter `tojson`, and objects that cache what it writes."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from services.templates import text_sizes

_ESCAPED_MARK = re.compile(
    r"(\\[^u]|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|\\u(dc[0-7][0-9a-f])"
)
_DEFAULT_FORM = (False, None, "None", False)
_FLOAT = b"\xcb"
"""Begins every float in msgspec's MessagePack. Other data has it too, but rarely."""


class NestedTooDeeply(Exception):
    """JSON data is nested too deeply to be written."""


class JsonDict(dict[str, Any]):
    """An object that caches its JSON: each prompt of a session contains the same tools.

    It must not change after it was written.
    """

    __slots__ = ("_json", "minijinja_differs")

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self._json: dict[tuple[object, ...], str] = {}
        self.minijinja_differs: bool | None = None
        """Whether minijinja writes it differently from Python; None: not known yet."""


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes it for HTML. Raises NestedTooDeeply, TextTooLong."""
    if isinstance(indent, int) and indent > text_sizes.MAX_INDENT:
        raise text_sizes.TextTooLong(f"it indents JSON by {indent}")
    form = (ensure_ascii, indent, str(separators), sort_keys)
    if type(value) is JsonDict and form in value._json:
        return value._json[form]
    text = None
    try:
        if type(value) is JsonDict and form == _DEFAULT_FORM:
            text = _default_json(value)
        text = text or json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            check_circular=False,  # JSON data never is, and a template cannot change it
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
    except RecursionError:
        raise NestedTooDeeply from None
    if ensure_ascii:
        text = _restore_marks(text)
    if type(value) is JsonDict:
        value._json[form] = text
    return text


def _default_json(value: JsonDict) -> str | None:
    """`json.dumps(value, ensure_ascii=False)` in half the time; None for marks and numbers beyond
    64 bits, and for what may be a float, which msgspec writes differently."""
    try:
        if _FLOAT in msgspec.msgpack.encode(value):
            return None
        return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    except (ValueError, OverflowError):
        return None


def _restore_marks(text: str) -> str:
    """The text with marked characters (`DataMarks`) as marks, where they were escaped. A low half
    after a high one belongs to a character."""
    return _ESCAPED_MARK.sub(_restored_mark, text)


def _restored_mark(escape: re.Match[str]) -> str:
    return escape[1] or chr(int(escape[2], 16))

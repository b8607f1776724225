"""The tags of a call in the text of its values, and which of them are text, too."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, Final

from services.families.grammar.scanner import Reader, Scanner
from services.families.grammar.shapes import MarkerMatch, Markers
from services.families.readers.arguments import ArgumentWriter


class Tag(Enum):
    """A tag in or between values."""

    VALUE_START = "opens a parameter"
    BARE_VALUE_START = "opens a parameter, but the tag before its value is missing"
    VALUE_END = "closes it"
    STRAY_PIECE = "belongs to a damaged tag"
    STRAY_VALUE_END = "closes a parameter where the call cannot go on"
    UNREADABLE_START = "opens a parameter, but its key cannot be read"
    FOREIGN_START = "opens a parameter in another format, with a closing tag like this one's"
    JSON_START = "holds all arguments as JSON"
    CALL_START = "opens a call"
    CALL_END = "closes a call"
    FINAL_CALL_END = "closes a call, and nothing but what closes more follows"
    AFTER_CALL = "belongs to what comes after the call"


class QuotedCalls:
    """The calls that a value shows as text: their tags do not end it."""

    __slots__ = ("_keys", "seen")

    def __init__(self) -> None:
        self.seen = False
        """There was one."""
        self._keys: list[str | None] = []
        """The open parameter of each call, the inner calls last; None between two of them."""

    @property
    def between(self) -> bool:
        """Whether such a call is open, and no parameter of it."""
        return bool(self._keys) and self._keys[-1] is None

    def add(self, tag: Tag, key: str = "") -> bool:
        """Adds the next tag, of parameter `key` where tags have keys. Returns whether it belongs
        to such a call."""
        if not self.between:
            ends_value = tag in (Tag.VALUE_END, Tag.STRAY_VALUE_END)
            if tag is Tag.CALL_START:
                self.seen = True
                self._keys.append(None)
            elif self._keys and ends_value and key == self._keys[-1]:
                self._keys[-1] = None
            return tag is Tag.CALL_START or bool(self._keys)
        if tag is Tag.VALUE_START:
            self._keys[-1] = key
        elif tag in (Tag.CALL_END, Tag.FINAL_CALL_END):
            self._keys.pop()
        return True


MENTIONABLE: Final = (
    Tag.VALUE_START,
    Tag.FOREIGN_START,
    Tag.STRAY_VALUE_END,
    Tag.STRAY_PIECE,
    Tag.CALL_START,
    Tag.CALL_END,
    Tag.AFTER_CALL,
)
"""Tags that a value may mention."""


class ShownTags:
    """The tags of parameters that are text in the values of a call.

    A value may show a parameter with both tags. One that the call lacks may have begun there,
    unless it follows. A tag without its counterpart may be what is left of a damaged one.
    """

    def __init__(self, parameters: Mapping[str, Any], written: AbstractSet[str]) -> None:
        self._parameters = parameters
        self._written = written
        self._open: list[bool] = []
        """The opening tags of the open value without their closing ones: whether each names a
        parameter that the call has."""
        self._doubts: set[str] = set()
        """Parameters that may have begun with such a tag."""
        self._ambiguous = False
        """A value has a tag without its counterpart, or a piece of one."""

    @property
    def are_text(self) -> bool:
        """Whether all of them are certainly text: the parameters in doubt followed, too."""
        return not self._ambiguous and self._doubts <= self._written

    def may_begin(self, key: str) -> bool:
        """Whether a tag may begin parameter `key`, which the call lacks so far. Only the first one
        in a value may."""
        return not self._open and key not in self._written and self._names(key)

    def _names(self, key: str) -> bool:
        return not self._parameters or key in self._parameters

    def add(self, tag: Tag, key: str = "", *, inside: str = "") -> None:
        """Adds the next tag of the open value, of parameter `key`; `inside`: the element that the
        value belongs to, where these nest."""
        if tag is Tag.VALUE_START:
            self._add_opener(key, inside)
        elif tag is Tag.FOREIGN_START:
            self._open.append(True)
        elif self._open and tag is not Tag.STRAY_PIECE:
            self._open.pop()
        else:
            self._ambiguous = True

    def _add_opener(self, key: str, inside: str) -> None:
        is_repeated = key in self._written or key == inside
        self._open.append(is_repeated)
        if not is_repeated and self._names(key):
            self._doubts.add(key)

    def end_value(self) -> None:
        """Ends the open value."""
        self._ambiguous = self._ambiguous or any(self._open)
        self._open.clear()


def next_tag(
    scanner: Scanner, tags: Markers[Tag], arguments: ArgumentWriter
) -> Reader[MarkerMatch[Tag] | None]:
    """Passes the next of `tags`; one after the end of the call is not passed. Text before it breaks
    the call."""
    scanner.start_recording()
    tag = yield from scanner.seek(tags)
    if scanner.stop_recording().strip():
        arguments.broken = True
    if tag is not None and tag.meaning is not Tag.AFTER_CALL:
        scanner.position = tag.match.end()
    return tag

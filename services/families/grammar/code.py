"""Follows which part of a block is code in Markdown: text in backticks or in a fence."""

from re import compile
from typing import Final

_FENCE: Final = compile(r"[ \t]{0,64}(?:(`{3,64}|~{3,64})([^`\n]{0,256})|`{0,2}|~{0,2})\Z")
"""Matches a line that is a fence, or that may become one."""


class Code:
    """The code in one block of prose, up to the text that `add` was last called with."""

    __slots__ = ("_fence", "_line", "end")

    def __init__(self) -> None:
        self.end = ""
        """The last two characters."""
        self._fence = ""
        """The fence that is open."""
        self._line: str | None = ""
        """The last line, if it may be a fence."""

    def add(self, text: str) -> None:
        """Follows the next piece of the block."""
        self.end = (self.end + text[-2:])[-2:]
        if self._line is None:
            _, ended, text = text.partition("\n")
            if not ended:
                return
            self._line = ""
        *lines, line = (self._line + text).split("\n")
        for passed in lines:
            self._fence = _after(self._fence, passed)
        self._line = line if _FENCE.match(line) else None

    @property
    def last(self) -> str:
        """The last character."""
        return self.end[-1:]

    @property
    def fenced(self) -> bool:
        """Whether the next character is inside of a fence."""
        return bool(_after(self._fence, self._line or ""))


def _after(fence: str, line: str) -> str:
    """The open fence after a line."""
    match = _FENCE.match(line)
    if match is None or not match[1]:
        return fence
    if not fence:
        return str(match[1])
    closes = match[1].startswith(fence) and not match[2].strip()
    return "" if closes else fence

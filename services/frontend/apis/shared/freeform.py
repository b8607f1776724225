"""Extracts the raw input of a freeform tool from the JSON that the model writes.

The model sees a freeform tool as a function with one string, `input`; the client receives the string itself, streamed.

    {"input": "*** Begin Patch\\n…"}      →      *** Begin Patch
                                                …
"""

import re

import msgspec
from msgspec import Struct

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PIECE = re.compile(
    r"""
    [^"\\]+
    | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
    | \\u[0-9a-fA-F]{4}
    | \\["\\/bfnrt]
    | (?P<not_json> \\[^"\\/bfnrtu] | \\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F]) )
    | "
    """,
    re.VERBOSE,
)
_PARTIAL_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?")
_LONE_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class _Wrapped(Struct):
    input: str


class FreeformInput:
    """Reads the arguments of one call piece by piece.

    The concatenation of all that `feed` and `end` return does not depend on how the text is cut. `end` returns text of
    another form unchanged.
    """

    def __init__(self) -> None:
        self._held = ""
        self._in_string = False
        self._over = False

    def feed(self, text: str) -> str:
        """The part of the input that this text makes certain."""
        if self._over:
            return ""
        self._held += text
        if not self._in_string:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._held = self._held[head.end() :]
            self._in_string = True
        return self._read()

    def end(self) -> str:
        """The rest, at the end of the call. Empty for a call that was cut off within the input."""
        if self._in_string or self._over:
            return ""
        try:
            return msgspec.json.decode(self._held, type=_Wrapped).input
        except (msgspec.DecodeError, RecursionError):
            return self._held

    def _read(self) -> str:
        held, at = self._held, 0
        out: list[str] = []
        while piece := _PIECE.match(held, at):
            found = piece.group()
            if found == '"':
                self._over, self._held = True, ""
                return "".join(out)
            if len(found) == 6 and found.startswith("\\u") and _LONE_HALF.fullmatch(found):
                if _PARTIAL_PAIR.fullmatch(held, at):
                    break
                found = "\\ufffd"
            escaped = found[0] == "\\" and not piece["not_json"]
            out.append(msgspec.json.decode(f'"{found}"', type=str) if escaped else found)
            at = piece.end()
        self._held = held[at:]
        return "".join(out)


def freeform_input(arguments: str) -> str:
    """The raw input in the complete arguments of a call."""
    reader = FreeformInput()
    return reader.feed(arguments) + reader.end()

"""Checks whether a text is the beginning of a JSON object, as the arguments of a truncated call
must be."""

import re
from typing import Final

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_CHARACTERS: Final = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*'
_STRING: Final = re.compile(_CHARACTERS + '"')
_STRING_HEAD: Final = re.compile(_CHARACTERS + r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9.eE+-])")
_NUMBER_HEAD: Final = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?)?\Z"
)
_WORDS: Final = ("true", "false", "null")


class _End(Exception):
    """The text ends here, and is valid so far."""


class _Wrong(Exception):
    """The text cannot be continued to valid JSON."""


def is_object_prefix(text: str) -> bool:
    """Whether some JSON object begins with `text`; blanks may stand anywhere between its tokens."""
    try:
        return not text[_object(text) :].strip(" \t\r\n")
    except _End:
        return True
    except _Wrong:
        return False


def _object(text: str) -> int:
    at = _expect(text, 0, "{")
    closers = ["}"]
    fresh = True
    while closers:
        char = _peek(text, at)
        if char == closers[-1]:
            at = _blank(text, at) + 1
            closers.pop()
            fresh = False
            continue
        if not fresh:
            at = _expect(text, at, ",")
        if closers[-1] == "}":
            at = _expect(text, _string(text, at), ":")
        char = _peek(text, at)
        if char in "{[":
            at = _blank(text, at) + 1
            closers.append("}" if char == "{" else "]")
            fresh = True
        else:
            at = _scalar(text, at)
            fresh = False
    return at


def _blank(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _peek(text: str, at: int) -> str:
    at = _blank(text, at)
    if at == len(text):
        raise _End
    return text[at]


def _expect(text: str, at: int, char: str) -> int:
    if _peek(text, at) != char:
        raise _Wrong
    return _blank(text, at) + 1


def _string(text: str, at: int) -> int:
    _peek(text, at)
    return _token(text, _blank(text, at), _STRING, _STRING_HEAD)


def _scalar(text: str, at: int) -> int:
    char = _peek(text, at)
    at = _blank(text, at)
    if char == '"':
        return _string(text, at)
    for word in _WORDS:
        if text.startswith(word, at):
            return at + len(word)
        if word.startswith(text[at:]):
            raise _End
    return _token(text, at, _NUMBER, _NUMBER_HEAD)


def _token(text: str, at: int, whole: re.Pattern[str], head: re.Pattern[str]) -> int:
    found = whole.match(text, at)
    if found is not None and found.end() < len(text):
        return found.end()
    if head.match(text, at) or found is not None:
        raise _End
    raise _Wrong

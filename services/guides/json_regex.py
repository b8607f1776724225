r"""Rewrites a regular expression so that it matches the same text inside a JSON string.

    say "(\w|\n)+"      →      say \\"(\w|\\n)+\\"

Each character keeps one spelling: `\"`, `\\`, the short escapes of control characters, everything else as it is. Other
control characters are left out of classes.
"""

import json
import re
from typing import Final

_ESCAPED: Final = {char: json.dumps(char)[1:-1] for char in '"\\\b\f\n\r\t'}
_PLAIN: Final = r'[^"\\\x00-\x1f]'
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)
_CODE: Final = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\x\{([0-9a-fA-F]{1,6})\}")
_FLAGS: Final = re.compile(r"\(\?([imsux]*)(?:-([imsux]+))?([:)])")
_NAMED: Final = re.compile(r"\(\?P?<[A-Za-z_]\w*>")
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}


class NotRewritable(ValueError):
    """The expression uses something that cannot be expressed inside a JSON string."""


def in_json_string(pattern: str, flags: str = "") -> str:
    """`pattern`, in the syntax of Rust's regular expressions, as it is to be inside a JSON string; `flags` of `imsx`.

    Raises NotRewritable.
    """
    if "x" in flags:
        raise NotRewritable("the flag x")
    written = "".join(_pieces(pattern, "s" in flags))
    return f"(?i:{written})" if "i" in flags else written


def _pieces(pattern: str, dot_all: bool) -> list[str]:
    out: list[str] = []
    groups: list[bool] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        width = 1
        if char == "\\":
            width, piece = _escape(pattern, at)
            out.append(piece)
        elif char == "[":
            found = _CLASS.match(pattern, at)
            if found is None:
                raise NotRewritable("a class that is not closed")
            width = len(found[0])
            out.append(_class(found[0]))
        elif char == ".":
            out.append(_class(r"[\s\S]" if dot_all else r"[^\n]"))
        elif char == "(":
            if flags := _FLAGS.match(pattern, at):
                on, off = flags[1], flags[2] or ""
                if "x" in on:
                    raise NotRewritable("the flag x")
                if flags[3] == ":":
                    groups.append(dot_all)
                dot_all = ("s" in on or dot_all) and "s" not in off
                width = len(flags[0])
                out.append(flags[0])
            else:
                groups.append(dot_all)
                named = _NAMED.match(pattern, at)
                if pattern.startswith("(?", at) and named is None:
                    raise NotRewritable(f"a group {pattern[at : at + 4]}")
                width = len(named[0]) if named else 1
                out.append("(")
        elif char == ")":
            dot_all = groups.pop() if groups else dot_all
            out.append(char)
        elif char in "^$":
            if pattern[:at].strip("(^") and pattern[at + 1 :].strip("$)"):
                raise NotRewritable("an anchor inside the expression")
        else:
            out.append(_literal(char))
        at += width
    return out


def _literal(char: str) -> str:
    if char < " " and char not in _ESCAPED:
        return rf"\\u{ord(char):04x}"
    return _ESCAPED[char].replace("\\", "\\\\") if char in _ESCAPED else char


def _escape(pattern: str, at: int) -> tuple[int, str]:
    """How long the escape is, and what it becomes."""
    if code := _CODE.match(pattern, at):
        char = chr(int(code[1] or code[2] or code[3], 16))
        return len(code[0]), _literal(char) if char in _ESCAPED or char < " " else code[0]
    escape = pattern[at : at + 2]
    letter = escape[1:]
    if letter in _LETTERS:
        return 2, _literal(_LETTERS[letter])
    if letter in ('"', "\\"):
        return 2, _literal(letter)
    if letter in "dwsDWS":
        return 2, _class(f"[{escape}]")
    if letter.isalnum() or not letter:
        raise NotRewritable(f"the escape {escape}")
    return 2, escape


def _class(text: str) -> str:
    """A class, in Python's and Rust's common syntax."""
    try:
        member = re.compile(text).match
    except (re.error, RecursionError) as error:
        raise NotRewritable(f"the class {text}: {error}") from None
    plain = f"[{text}&&{_PLAIN}]"
    escaped = [spelling.replace("\\", "\\\\") for char, spelling in _ESCAPED.items() if member(char)]
    return f"(?:{'|'.join([plain, *escaped])})" if escaped else plain

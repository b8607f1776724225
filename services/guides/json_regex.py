r"""Rewrites a regular expression as a Lark rule for the same text inside a JSON string.

    say "(\w|\n)+"      →      "say \\\"" (WORD | "\\n")+ "\\\""

Each character keeps one spelling: `\"`, `\\`, the short escapes of control characters, everything else as it is. Other
control characters are left out of classes. It becomes a rule and no terminal because all escapes begin alike, and
llguidance does not go back in a terminal: `.+` would take the backslash of the `\n` that follows it.
"""

import json
import re
from collections.abc import Callable
from typing import Final

_ESCAPED: Final = {char: json.dumps(char)[1:-1] for char in '"\\\b\f\n\r\t'}
_PLAIN: Final = r'[^"\\\x00-\x1f]'
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)
_CODE: Final = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\x\{([0-9a-fA-F]{1,6})\}")
_FLAGS: Final = re.compile(r"\(\?([imsux]*)(?:-([imsux]+))?([:)])")
_NAMED: Final = re.compile(r"\(\?P?<[A-Za-z_]\w*>")
_TIMES: Final = re.compile(r"([*+?]|\{\d*,?\d*\})\??")
_END: Final = re.compile(r"[)$]*\Z")
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}


class NotRewritable(ValueError):
    """The expression uses something that has no such form."""


class JsonExpression:
    """Rewrites one expression. `terminal` names a terminal by its body."""

    def __init__(self, terminal: Callable[[str], str]) -> None:
        self._terminal = terminal

    def rewrite(self, pattern: str, flags: str = "") -> str:
        """A rule's body for `pattern`, in the syntax of Rust's regular expressions; `flags` of `imsx`.

        Raises NotRewritable.
        """
        any_case, dot_all = "i" in flags, "s" in flags
        out: list[str] = []
        groups: list[tuple[bool, bool]] = []
        at = 0
        while at < len(pattern):
            char, width = pattern[at], 1
            atom: str | None = None
            members = ""
            if "x" in flags:
                raise NotRewritable("the flag x")
            if char == "\\":
                width, text, members = _escape(pattern, at)
                atom = self._one(members, any_case) if members else self._literal(text, any_case)
            elif char == "[":
                found = _CLASS.match(pattern, at)
                if found is None:
                    raise NotRewritable("a class that is not closed")
                width, members = len(found[0]), found[0]
                atom = self._one(members, any_case)
            elif char == ".":
                members = r"[\s\S]" if dot_all else r"[^\n]"
                atom = self._one(members, any_case)
            elif char == "(":
                if inline := _FLAGS.match(pattern, at):
                    on, off = inline[1], inline[2] or ""
                    if "x" in on:
                        raise NotRewritable("the flag x")
                    if inline[3] == ":":
                        groups.append((any_case, dot_all))
                        out.append("(")
                    any_case = ("i" in on or any_case) and "i" not in off
                    dot_all = ("s" in on or dot_all) and "s" not in off
                    width = len(inline[0])
                else:
                    named = _NAMED.match(pattern, at)
                    if pattern.startswith("(?", at) and named is None:
                        raise NotRewritable(f"a group {pattern[at : at + 4]}")
                    groups.append((any_case, dot_all))
                    out.append("(")
                    width = len(named[0]) if named else 1
            elif char == ")":
                if not groups:
                    raise NotRewritable("a group that is not open")
                any_case, dot_all = groups.pop()
                atom = ")"
            elif char == "|":
                out.append("|")
            elif char in "^$":
                if pattern[:at].strip("(^") and pattern[at + 1 :].strip("$)"):
                    raise NotRewritable("an anchor inside the expression")
            else:
                atom = self._literal(char, any_case)
            at += width
            if atom is not None:
                times = _TIMES.match(pattern, at)
                if times is not None:
                    at = times.end()
                    if members and times[1] in "*+" and _END.match(pattern, at):
                        atom = self._one(members, any_case, "+")
                    atom += times[1]
                out.append(atom)
        return " ".join(out) or '""'

    def _literal(self, char: str, any_case: bool) -> str:
        if any_case and char.lower() != char.upper():
            return self._terminal(f"/(?i:{char})/")
        if char < " " and char not in _ESCAPED:
            return json.dumps(rf"\u{ord(char):04x}")
        return json.dumps(_ESCAPED.get(char, char), ensure_ascii=False)

    def _one(self, members: str, any_case: bool, times: str = "") -> str:
        """One character of a class. `times` "+": as many as come, up to an escape, where the expression ends here."""
        body = f"[{members}&&{_PLAIN}]{times}"
        body = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], body)
        plain = self._terminal(f"/(?i:{body})/" if any_case else f"/{body}/")
        return f"({' | '.join([plain, *_escapes(members)])})"


def _escape(pattern: str, at: int) -> tuple[int, str, str]:
    """How long the escape is, and the character that it stands for, or else the class."""
    if code := _CODE.match(pattern, at):
        return len(code[0]), chr(int(code[1] or code[2] or code[3], 16)), ""
    letter = pattern[at + 1 : at + 2]
    if letter in _LETTERS and letter:
        return 2, _LETTERS[letter], ""
    if letter and letter in "dwsDWS":
        return 2, "", f"[\\{letter}]"
    if letter.isalnum() or not letter:
        raise NotRewritable(f"the escape \\{letter}")
    return 2, letter, ""


def _escapes(members: str) -> list[str]:
    """The spellings of those members of a class that are escaped in JSON."""
    try:
        member = re.compile(members).match
    except (re.error, RecursionError) as error:
        raise NotRewritable(f"the class {members}: {error}") from None
    return [json.dumps(spelling) for char, spelling in _ESCAPED.items() if member(char)]

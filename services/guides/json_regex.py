r"""Rewrites a regular expression as a Lark rule for the same text inside a JSON string.

    say "(\w|\n)+"      →      "say \\\"" (WORD | "\\n")+ "\\\""

Each character has one spelling: `\"`, `\\`, the short escapes of control characters, everything
else as it is. Other control characters are left out of classes. The result is a rule instead of a
terminal because all escapes begin alike and llguidance does not backtrack in a terminal: `.+` would
take the backslash of the `\n` that follows it.
"""

import json
import re
from collections.abc import Callable
from typing import Final

_ESCAPED: Final = {char: json.dumps(char)[1:-1] for char in '"\\\b\f\n\r\t'}
_PLAIN: Final = r'[^"\\\x00-\x1f]'
_PART: Final = re.compile(
    r"""
    (?P<code> \\x([0-9a-fA-F]{2}) | \\u([0-9a-fA-F]{4}) | \\x\{([0-9a-fA-F]{1,6})\} )
    | (?P<letter> \\[nrtfva0] )
    | (?P<class> \\[dwsDWS] | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\] )
    | (?P<escaped> \\(?:\W|_) )
    | (?P<flags> \(\?(?P<on>[imsu]*)(?:-(?P<off>[imsux]+))?(?P<rest>[:)]) )
    | (?P<opener> \((?!\?) | \(\?P?<[A-Za-z_]\w*> )
    | (?P<closer> \) )
    | (?P<bar> \| )
    | (?P<anchor> [\^$] )
    | (?P<any> \. )
    | (?P<char> [^\\\[(] )
    """,
    re.DOTALL | re.VERBOSE,
)
_TIMES: Final = re.compile(r"([*+?]|\{\d*,?\d*\})\??")
_END: Final = re.compile(r"[)$]*\Z")
_UNREPEATED: Final = frozenset({"flags", "opener", "bar", "anchor"})
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}


class NotEmbeddable(ValueError):
    """The expression or grammar uses something that cannot be embedded."""


class JsonExpression:
    """Rewrites one expression. `terminal` names a terminal by its body."""

    def __init__(self, terminal: Callable[[str], str]) -> None:
        self._terminal = terminal

    def rewrite(self, pattern: str, flags: str = "") -> str:
        """A rule's body for `pattern`, in the syntax of Rust's regular expressions; `flags` of
        `imsx`.

        Raises NotEmbeddable.
        """
        if "x" in flags:
            raise NotEmbeddable("the flag x")
        any_case, dot_all = "i" in flags, "s" in flags
        out: list[str] = []
        groups: list[tuple[bool, bool]] = []
        first, last = len(pattern) - len(pattern.lstrip("(^")), len(pattern.rstrip("$)")) - 1
        at = 0
        while at < len(pattern):
            found = _PART.match(pattern, at)
            if found is None:
                raise NotEmbeddable(f"the escape, class or group {pattern[at : at + 4]}")
            members = ""
            match found.lastgroup:
                case "code" | "letter" | "escaped" | "char":
                    out.append(self._literal(_character(found), any_case))
                case "class" | "any":
                    members = _members(found, dot_all)
                    out.append(self._one(members, any_case))
                case "opener" | "flags":
                    if found["flags"] is None or found["rest"] == ":":
                        groups.append((any_case, dot_all))
                        out.append("(")
                    on, off = found["on"] or "", found["off"] or ""
                    any_case = ("i" in on or any_case) and "i" not in off
                    dot_all = ("s" in on or dot_all) and "s" not in off
                case "closer":
                    if not groups:
                        raise NotEmbeddable("a group that is not open")
                    any_case, dot_all = groups.pop()
                    out.append(")")
                case "bar":
                    out.append("|")
                case "anchor":
                    if first < at < last:
                        raise NotEmbeddable("an anchor inside the expression")
            at = found.end()
            times = _TIMES.match(pattern, at) if found.lastgroup not in _UNREPEATED else None
            if times is not None:
                at = times.end()
                if members and times[1] in "*+" and _END.match(pattern, at):
                    out[-1] = self._one(members, any_case, "+")
                out[-1] += times[1]
        return " ".join(out) or '""'

    def _literal(self, char: str, any_case: bool) -> str:
        if any_case and char.lower() != char.upper():
            return self._terminal(f"/(?i:{char})/")
        if char < " " and char not in _ESCAPED:
            return json.dumps(rf"\u{ord(char):04x}")
        return json.dumps(_ESCAPED.get(char, char), ensure_ascii=False)

    def _one(self, members: str, any_case: bool, times: str = "") -> str:
        """One character of a class. `times` "+", at the end of the expression: all characters up to
        an escape."""
        body = f"[{members}&&{_PLAIN}]{times}"
        body = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], body)
        plain = self._terminal(f"/(?i:{body})/" if any_case else f"/{body}/")
        return f"({' | '.join([plain, *_escapes(members)])})"


def _character(found: re.Match[str]) -> str:
    """The character that a part stands for."""
    if found["code"]:
        return chr(int(found[2] or found[3] or found[4], 16))
    last = found[0][-1]
    return _LETTERS[last] if found["letter"] else last


def _members(found: re.Match[str], dot_all: bool) -> str:
    """The class that a part stands for."""
    if found["any"]:
        return r"[\s\S]" if dot_all else r"[^\n]"
    return found[0] if found[0][0] == "[" else f"[{found[0]}]"


def _escapes(members: str) -> list[str]:
    """The spellings of those members of a class that are escaped in JSON."""
    try:
        member = re.compile(members).match
    except (re.error, RecursionError) as error:
        raise NotEmbeddable(f"the class {members}: {error}") from None
    return [json.dumps(spelling) for char, spelling in _ESCAPED.items() if member(char)]

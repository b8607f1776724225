r"""Rewrites a regular expression as a Lark rule for the same text inside a JSON string.

    say "(\w|\n)+"      →      "say \\\"" (WORD | "\\n")+ "\\\""

Each character has one spelling: `\"`, `\\`, the short escapes of control characters, everything
else as it is. Other control characters are left out of classes. The result is a rule instead of a
terminal because all escapes begin alike and llguidance does not backtrack in a terminal: `.+` would
take the backslash of the `\n` that follows it.
"""

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

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
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}


class NotEmbeddable(ValueError):
    """The expression or grammar uses something that cannot be embedded."""


class Terminals:
    """Names the terminals that the rules of an embedded grammar use."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: the beginning of all names, in lower case."""
        self._prefix = f"{prefix.upper()}X"
        self._numbers: dict[str, int] = {}

    def name(self, body: str) -> str:
        """Returns the name of the terminal with this body."""
        return f"{self._prefix}{self._numbers.setdefault(body, len(self._numbers))}"

    def lines(self) -> list[str]:
        """Returns the line of each terminal."""
        return [f"{self._prefix}{number}: {body}" for body, number in self._numbers.items()]


class JsonExpression:
    """Rewrites expressions. `terminals` gets those that the rules use."""

    def __init__(self, terminals: Terminals) -> None:
        self._terminals = terminals

    def rewrite(self, pattern: str, flags: str = "") -> str:
        """A rule's body for `pattern`, in the syntax of Rust's regular expressions; `flags` of
        `imsx`.

        Raises NotEmbeddable.
        """
        if "x" in flags:
            raise NotEmbeddable("the flag x")
        mode = _Mode(any_case="i" in flags, dot_all="s" in flags)
        return _ExpressionRewriter(pattern, mode, self._terminals).rule()


class _Mode(NamedTuple):
    """The flags that are on at a place of an expression."""

    any_case: bool
    dot_all: bool

    def changed(self, on: str, off: str) -> "_Mode":
        """Returns the mode after a part that turns flags on and off."""
        return _Mode(
            any_case=("i" in on or self.any_case) and "i" not in off,
            dot_all=("s" in on or self.dot_all) and "s" not in off,
        )


class _ExpressionRewriter:
    """Rewrites one expression, part by part."""

    def __init__(self, pattern: str, mode: _Mode, terminals: Terminals) -> None:
        self._pattern = pattern
        self._mode = mode
        self._terminals = terminals
        self._out: list[str] = []
        self._outer: list[_Mode] = []
        """The modes outside the open groups."""
        self._first = len(pattern) - len(pattern.lstrip("(^"))
        self._last = len(pattern.rstrip("$)")) - 1
        """Where the expression begins and ends without its anchors."""

    def rule(self) -> str:
        """Returns the rule's body. Raises NotEmbeddable."""
        pattern = self._pattern
        at = 0
        while at < len(pattern):
            part = _PART.match(pattern, at)
            if part is None:
                raise NotEmbeddable(f"the escape, class or group {pattern[at : at + 4]}")
            at = self._add(part)
        return " ".join(self._out) or '""'

    def _add(self, part: re.Match[str]) -> int:
        """Adds a part, and how often it is repeated. Returns the place after both."""
        match part.lastgroup:
            case "code" | "letter" | "escaped" | "char":
                self._out.append(self._literal(_character(part)))
            case "class" | "any":
                members = _members(part, self._mode.dot_all)
                self._out.append(self._class(members))
                return self._repeat(part.end(), members)
            case "closer":
                self._close_group()
            case "opener" | "flags":
                self._open_group(part)
                return part.end()
            case "bar":
                self._out.append("|")
                return part.end()
            case "anchor":
                if self._first < part.start() < self._last:
                    raise NotEmbeddable("an anchor inside the expression")
                return part.end()
        return self._repeat(part.end())

    def _open_group(self, part: re.Match[str]) -> None:
        """Opens a group, or changes the flags of the open one."""
        changes_open_group = part["rest"] == ")"
        if not changes_open_group:
            self._outer.append(self._mode)
            self._out.append("(")
        self._mode = self._mode.changed(part["on"] or "", part["off"] or "")

    def _close_group(self) -> None:
        if not self._outer:
            raise NotEmbeddable("a group that is not open")
        self._mode = self._outer.pop()
        self._out.append(")")

    def _repeat(self, at: int, members: str = "") -> int:
        """Adds the repetition at a place, of a class with these `members`. Returns the place after
        it."""
        times = _TIMES.match(self._pattern, at)
        if times is None:
            return at
        if members and times[1] in "*+" and _END.match(self._pattern, times.end()):
            self._out[-1] = self._class(members, "+")
        self._out[-1] += times[1]
        return times.end()

    def _literal(self, char: str) -> str:
        if self._mode.any_case and char.lower() != char.upper():
            return self._terminals.name(f"/(?i:{char})/")
        if char < " " and char not in _ESCAPED:
            return json.dumps(rf"\u{ord(char):04x}")
        return json.dumps(_ESCAPED.get(char, char), ensure_ascii=False)

    def _class(self, members: str, times: str = "") -> str:
        """One character of a class. `times` "+", at the end of the expression: all characters up to
        an escape."""
        body = respelled(f"[{members}&&{_PLAIN}]{times}", {"/": r"\/"})
        if self._mode.any_case:
            body = f"(?i:{body})"
        plain = self._terminals.name(f"/{body}/")
        return f"({' | '.join([plain, *_escapes(members)])})"


def respelled(pattern: str, spellings: Mapping[str, str]) -> str:
    """Replaces escapes, and the slashes and line breaks outside of them."""
    return re.sub(r"\\.|/|\n", lambda match: spellings.get(match[0], match[0]), pattern)


def _character(part: re.Match[str]) -> str:
    """The character that a part stands for."""
    if part["code"]:
        return chr(int(part[2] or part[3] or part[4], 16))
    last = part[0][-1]
    if part["letter"]:
        return _LETTERS[last]
    return last


def _members(part: re.Match[str], dot_all: bool) -> str:
    """The class that a part stands for."""
    if part["any"]:
        return r"[\s\S]" if dot_all else r"[^\n]"
    if part[0].startswith("["):
        return part[0]
    return f"[{part[0]}]"


def _escapes(members: str) -> list[str]:
    """The spellings of those members of a class that are escaped in JSON."""
    try:
        member = re.compile(members).match
    except (re.error, RecursionError) as error:
        raise NotEmbeddable(f"the class {members}: {error}") from None
    return [json.dumps(spelling) for char, spelling in _ESCAPED.items() if member(char)]

r"""Embeds the grammar of a freeform tool's input in the grammar of a turn.

The client's rules are renamed, and its terminals are rewritten for the place of the input: inside a
JSON string, or as bare text before a closing marker, which no terminal may then match.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from schemas.conversation import Grammar
from services.guides.json_regex import JsonExpression, NotEmbeddable

_COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"(\+|-)?[0-9]+",
    "DECIMAL": r"([0-9]+\.[0-9]*)|(\.[0-9]+)",
    "FLOAT": r"([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+",
    "SIGNED_FLOAT": r"(\+|-)?(([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)",
    "NUMBER": r"([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+",
    "SIGNED_NUMBER": r"(\+|-)?(([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
}
"""Lark's common terminals."""
_TOKEN: Final = re.compile(
    r"""
    (?P<blank> [ \t\f\r]+ | //[^\n]* | \#[^\n]* )
    | (?P<line> \n )
    | (?P<string> "(?:\\.|[^"\\\n])*"i? )
    | (?P<regex> /(?!/)(?:\\.|[^/\\\n])+/[imslux]* )
    | (?P<import> %import[ \t]+common[ \t]*\.[ \t]*(?P<common>\w+)(?:[ \t]*->[ \t]*(?P<as>\w+))? )
    | (?P<several> %import[ \t]+common[ \t]*\([^)]*\) )
    | (?P<alias> ->[ \t]*\w+ )
    | (?P<name> [?!]{0,2}(?P<plain>_*[A-Za-z][\w-]*)(?P<priority>\.-?\d+)? )
    | (?P<repeat> ~[ \t]*\d+(?:[ \t]*\.\.[ \t]*\d+)? | \{[ \t]*\d*[ \t]*,?[ \t]*\d*[ \t]*\} )
    | (?P<range> \.\. )
    | (?P<mark> [:|()\[\]?*+&] )
    """,
    re.VERBOSE,
)


def embedded(
    grammar: Grammar, prefix: str, *, in_json: bool, closers: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Returns the name of the start rule (for a regular expression, of its terminal) and the lines
    of all rules. Their names begin with `prefix` (lower case).

    `in_json`: the input is inside a JSON string; otherwise it is bare text that `closers` end.
    Raises NotEmbeddable.
    """
    if grammar.syntax == "regex" and not in_json:
        terminal = f"{prefix.upper()}REGEX"
        return terminal, [f"{terminal}: {_bare(grammar.definition, '', closers)}"]
    rewriter = _Rewriter(prefix, in_json, closers)
    if grammar.syntax == "regex":
        return f"{prefix}start", [
            f"{prefix}start: {rewriter.expression(grammar.definition, '')}",
            *rewriter.own(),
        ]
    lines = rewriter.rewrite(grammar.definition)
    if not any(line.startswith(f"{prefix}start:") for line in lines):
        raise NotEmbeddable("there is no rule start")
    return f"{prefix}start", lines


def _bare(pattern: str, flags: str, closers: Sequence[str]) -> str:
    """The body of a terminal that matches bare text."""
    kept = "".join(flag for flag in flags if flag in "imsx")
    body = (
        "/"
        + re.sub(r"\\.|/|\n", lambda m: {"/": r"\/", "\n": r"\n"}.get(m[0], m[0]), pattern)
        + "/"
        + kept
    )
    return f"{body} & {without(closers)}" if closers else body


def without(texts: Sequence[str]) -> str:
    """The body of a terminal that matches anything without one of `texts`."""
    return f"~/(?s:.*)({'|'.join(map(quoted_regex, texts))})(?s:.*)/"


def avoiding(texts: Sequence[str]) -> str | None:
    """A regular expression for text without any of `texts`. None unless all of them begin with the
    same character and have it nowhere else."""
    head = texts[0][0]
    if any(text[0] != head or head in text[1:] for text in texts):
        return None
    following: dict[str, set[str]] = {}
    for text in texts:
        for end in range(1, len(text)):
            following.setdefault(text[:end], set()).add(text[end])
    excluded = {
        start: "".join(map(quoted_regex, sorted({*after, head})))
        for start, after in following.items()
    }
    starts = "|".join(quoted_regex(start) for start in excluded if start not in texts)
    misses = "|".join(
        f"{quoted_regex(start)}[^{after}]"
        for start, after in excluded.items()
        if start not in texts
    )
    return f"^(?:[^{quoted_regex(head)}]|(?:{starts})*(?:{misses}))*(?:{starts})*$"


def quoted_regex(text: str) -> str:
    """A regular expression for exactly this text, to be written between slashes."""
    return "".join(
        rf"\x{{{ord(char):x}}}" if not char.isalnum() and ord(char) < 128 else char for char in text
    )


class _Rewriter:
    """Copies a grammar token by token, with new names and rewritten terminals."""

    def __init__(self, prefix: str, in_json: bool, closers: Sequence[str]) -> None:
        self._prefix, self._in_json, self._closers = prefix, in_json, closers
        self._terminals: dict[str, int] = {}
        self._imports: dict[str, str] = {}
        self._json = JsonExpression(self._terminal)

    def rewrite(self, definition: str) -> list[str]:
        """The rules, one a line. Raises NotEmbeddable."""
        rules = [" ".join(rule).replace(" :", ":", 1) for rule in self._rules(definition) if rule]
        imported = [
            f"{self._name(name)}: {self.expression(_COMMON[of], '')}"
            for name, of in self._imports.items()
        ]
        return [*rules, *imported, *self.own()]

    def own(self) -> list[str]:
        """The lines of the terminals that the rules use."""
        return [f"{self._prefix.upper()}X{i}: {body}" for body, i in self._terminals.items()]

    def expression(self, pattern: str, flags: str) -> str:
        """A regular expression in the form that a rule may contain."""
        pattern = re.sub(
            r"\\.", lambda found: "/" if found[0] == r"\/" else found[0], pattern, flags=re.DOTALL
        )
        if self._in_json:
            return f"({self._json.rewrite(pattern, flags)})"
        return self._terminal(_bare(pattern, flags, self._closers))

    def _terminal(self, body: str) -> str:
        return f"{self._prefix.upper()}X{self._terminals.setdefault(body, len(self._terminals))}"

    def _rules(self, definition: str) -> list[list[str]]:
        """Splits a grammar into rules: each begins at a name before a colon."""
        tokens = [*_tokens(definition)]
        rules: list[list[str]] = [[]]
        for i, found in enumerate(tokens):
            kind = found.lastgroup
            if kind in ("import", "several"):
                self._import(found)
            elif kind == "name" and i + 1 < len(tokens) and tokens[i + 1][0] == ":":
                rules.append([self._name(found["plain"])])
            else:
                rules[-1].append(self._token(found, rules[-1]))
        return rules

    def _token(self, found: re.Match[str], rule: list[str]) -> str:
        text = found[0]
        match found.lastgroup:
            case "name":
                return self._name(found["plain"])
            case "string":
                return self._string(text)
            case "regex":
                body, _, flags = text[1:].rpartition("/")
                return self.expression(body, flags)
            case "range":
                raise NotEmbeddable("a range of characters; write it as a regular expression")
            case "alias":
                return ""
        if text == ":" and len(rule) != 1:
            raise NotEmbeddable("attributes of a rule")
        if text == "&" and self._in_json:
            raise NotEmbeddable("the operator &")
        return text

    def _string(self, text: str) -> str:
        quoted = text.removesuffix("i") if text.endswith('"i') else text
        try:
            value = str(ast.literal_eval(quoted))
        except (SyntaxError, ValueError):
            raise NotEmbeddable(f"the string {text}") from None
        if text.endswith('"i'):
            return self.expression(quoted_regex(value), "i")
        if self._in_json:
            value = json.dumps(value, ensure_ascii=False)[1:-1]
        return json.dumps(value, ensure_ascii=False)

    def _name(self, name: str) -> str:
        """The new name, in lower case inside JSON strings: there terminals become rules (see
        `json_regex`)."""
        if not name.strip("_")[:1].isupper():
            return self._prefix + name
        return f"{self._prefix}0_{name.lower()}" if self._in_json else self._prefix.upper() + name

    def _import(self, found: re.Match[str]) -> None:
        names = (
            [found["common"]] if found["common"] else re.findall(r"\w+", found[0].partition("(")[2])
        )
        for name in names:
            if name not in _COMMON:
                raise NotEmbeddable(f"common.{name}")
            self._imports[found["as"] or name] = name


def _tokens(definition: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(definition):
        found = _TOKEN.match(definition, at)
        if found is None:
            raise NotEmbeddable(definition[at:].split("\n", maxsplit=1)[0][:40])
        if found.lastgroup not in ("blank", "line"):
            yield found
        at = found.end()

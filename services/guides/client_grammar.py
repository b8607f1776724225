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
from services.guides.json_regex import JsonExpression, NotEmbeddable, Terminals, respelled

_COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"(\+|-)?[0-9]+",
    "DECIMAL": r"([0-9]+\.[0-9]*)|(\.[0-9]+)",
    "FLOAT": r"([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+",
    "SIGNED_FLOAT": (
        r"(\+|-)?"
        r"(([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)"
    ),
    "NUMBER": r"([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+",
    "SIGNED_NUMBER": (
        r"(\+|-)?"
        r"(([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)"
    ),
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
    start = f"{prefix}start"
    if grammar.syntax == "regex":
        rule = f"{start}: {rewriter.expression(grammar.definition, '')}"
        return start, [rule, *rewriter.terminals.lines()]

    lines = rewriter.rewrite(grammar.definition)
    if not any(line.startswith(f"{start}:") for line in lines):
        raise NotEmbeddable("there is no rule start")
    return start, lines


def _bare(pattern: str, flags: str, closers: Sequence[str]) -> str:
    """The body of a terminal that matches bare text."""
    kept = "".join(flag for flag in flags if flag in "imsx")
    between_slashes = respelled(pattern, {"/": r"\/", "\n": r"\n"})
    body = f"/{between_slashes}/{kept}"
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
    """The beginning of a text → the characters that continue it."""
    for text in texts:
        for end in range(1, len(text)):
            following.setdefault(text[:end], set()).add(text[end])

    starts: list[str] = []
    misses: list[str] = []
    for beginning, continuing in following.items():
        if beginning in texts:
            continue
        start = quoted_regex(beginning)
        excluded = "".join(map(quoted_regex, sorted({*continuing, head})))
        starts.append(start)
        misses.append(f"{start}[^{excluded}]")
    any_start = f"(?:{'|'.join(starts)})*"
    any_miss = f"(?:{'|'.join(misses)})"
    return f"^(?:[^{quoted_regex(head)}]|{any_start}{any_miss})*{any_start}$"


def quoted_regex(text: str) -> str:
    """A regular expression for exactly this text, to be written between slashes."""
    return "".join(map(_quoted_character, text))


def _quoted_character(char: str) -> str:
    if char.isalnum() or ord(char) >= 128:
        return char
    return rf"\x{{{ord(char):x}}}"


class _Rewriter:
    """Copies a grammar token by token, with new names and rewritten terminals."""

    def __init__(self, prefix: str, in_json: bool, closers: Sequence[str]) -> None:
        self._prefix = prefix
        self._in_json = in_json
        self._closers = closers
        self._imports: dict[str, str] = {}
        """Name of an imported terminal → its name in `_COMMON`."""
        self.terminals = Terminals(prefix)
        self._json = JsonExpression(self.terminals)

    def rewrite(self, definition: str) -> list[str]:
        """The rules, one a line. Raises NotEmbeddable."""
        rules = [" ".join(rule).replace(" :", ":", 1) for rule in self._rules(definition) if rule]
        imported = [
            f"{self._name(name)}: {self.expression(_COMMON[common], '')}"
            for name, common in self._imports.items()
        ]
        return [*rules, *imported, *self.terminals.lines()]

    def expression(self, pattern: str, flags: str) -> str:
        """A regular expression in the form that a rule may contain."""
        pattern = respelled(pattern, {r"\/": "/"})
        if self._in_json:
            return f"({self._json.rewrite(pattern, flags)})"
        return self.terminals.name(_bare(pattern, flags, self._closers))

    def _rules(self, definition: str) -> list[list[str]]:
        """Splits a grammar into rules: each begins at a name before a colon."""
        tokens = [*_tokens(definition)]
        next_texts = [*(token[0] for token in tokens[1:]), ""]
        rules: list[list[str]] = [[]]
        for token, next_text in zip(tokens, next_texts, strict=False):
            if token.lastgroup in ("import", "several"):
                self._import(token)
            elif token.lastgroup == "name" and next_text == ":":
                rules.append([self._name(token["plain"])])
            else:
                rules[-1].append(self._token(token, rules[-1]))
        return rules

    def _token(self, token: re.Match[str], rule: list[str]) -> str:
        text = token[0]
        match token.lastgroup:
            case "name":
                return self._name(token["plain"])
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
        any_case = text.endswith('"i')
        try:
            value = str(ast.literal_eval(text.removesuffix("i")))
        except (SyntaxError, ValueError):
            raise NotEmbeddable(f"the string {text}") from None
        if any_case:
            return self.expression(quoted_regex(value), "i")
        if self._in_json:
            value = json.dumps(value, ensure_ascii=False)[1:-1]
        return json.dumps(value, ensure_ascii=False)

    def _name(self, name: str) -> str:
        """The new name, in lower case inside JSON strings: there terminals become rules (see
        `json_regex`)."""
        is_terminal = name.strip("_")[:1].isupper()
        if not is_terminal:
            return self._prefix + name
        if self._in_json:
            return f"{self._prefix}0_{name.lower()}"
        return self._prefix.upper() + name

    def _import(self, token: re.Match[str]) -> None:
        for name in _imported_names(token):
            if name not in _COMMON:
                raise NotEmbeddable(f"common.{name}")
            self._imports[token["as"] or name] = name


def _imported_names(token: re.Match[str]) -> list[str]:
    if token["common"]:
        return [token["common"]]
    listed = token[0].partition("(")[2]
    return re.findall(r"\w+", listed)


def _tokens(definition: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(definition):
        token = _TOKEN.match(definition, at)
        if token is None:
            rest_of_line = definition[at:].split("\n", maxsplit=1)[0]
            raise NotEmbeddable(rest_of_line[:40])
        if token.lastgroup not in ("blank", "line"):
            yield token
        at = token.end()

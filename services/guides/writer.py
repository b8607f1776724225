"""Writes Lark rules of literal text, in which control tokens are ids, and of free text up to a
marker."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from services.guides.client_grammar import without

SPACING: Final = {"whitespace_pattern": r"[ \t\r\n]{0,32}"}
"""Allows for a deep indent. Without a limit, small models write white space to the end of the
context window."""
_NOTHING: Final = "(?!)"
ANY: Final = "/(?s:.+)/"
"""The body of a terminal for any text, not empty."""


class Unguidable(ValueError):
    """The family's calls cannot be restricted by a grammar."""


class RuleWriter:
    """Collects the rules of one grammar."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """`tokens`: the tokenizer's added tokens. llguidance matches some of them by their id
        only."""
        self._tokens = tokens
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        any_token = "|".join(map(re.escape, longest_first))
        self._added = re.compile(any_token or _NOTHING)
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def rule(self, body: str, attributes: str = "") -> str:
        """Adds a rule with this body; returns its name."""
        return self._named("r", body, attributes)

    def choice(self, bodies: Iterable[str]) -> str:
        """Adds a rule with these alternatives; returns its name."""
        return self.rule(" | ".join(bodies))

    def terminal(self, body: str) -> str:
        """Adds a terminal with this body; returns its name."""
        return self._named("T", body, "")

    def schema(self, schema: Mapping[str, Any]) -> str:
        """Adds a rule for a JSON value of this schema; returns its name."""
        guided = json.dumps({**schema, "x-guidance": SPACING}, ensure_ascii=False)
        return self.rule(f"%json {guided}")

    def _named(self, kind: str, body: str, attributes: str) -> str:
        key = f"{kind}{attributes}: {body}"
        name = self._names.get(key)
        if name is None:
            name = f"{kind}{len(self._names)}"
            self._names[key] = name
            self.lines.append(f"{name}{attributes}: {body}")
        return name

    def text_without(self, markers: Sequence[str]) -> str:
        """Adds a terminal for non-empty text without any of `markers`; returns its name."""
        if not markers:
            return self.terminal(ANY)
        return self.terminal(f"{ANY} & {without(markers)}")

    def literal(self, text: str) -> str:
        """Exactly this text; "" for none."""
        return " ".join(self._piece(piece) for piece in self._split(text))

    def until(self, before: str, marker: str, *, optional: bool = True) -> str:
        """The terminal `before`, or nothing if it is optional, and the marker that ends it."""
        first, *rest = self._split(marker)
        if optional:
            before = f"{before}?"
        if first in self._tokens:
            opened = f"{before} {self._piece(first)}"
        elif rest:
            # The text before a token may end in the marker's beginning.
            opened = self.terminal(f"{before} {_string(first)}")
        else:
            opened = self.rule(f"{before} {_string(first)}", "[lazy]")
        return " ".join([opened, *map(self._piece, rest)])

    def until_any(self, before: str, markers: Sequence[str]) -> list[str]:
        """Rules for the terminal `before` and one of the markers that ends it."""
        rules: list[str] = []
        spelled = [marker for marker in markers if not self._added.search(marker)]
        if spelled:  # one rule for all is quicker for the library
            any_marker = " | ".join(map(_string, spelled))
            rules.append(self.rule(f"{before} ({any_marker})", "[lazy]"))
        for marker in markers:
            if marker not in spelled:
                rules.append(self.rule(self.until(before, marker, optional=False)))
        return rules

    def whole_tokens(self, text: str, length: int) -> str:
        """The first `length` characters of `text`, or more: an added token that begins there is
        whole."""
        for match in self._added.finditer(text):
            if match.start() < length < match.end():
                length = match.end()
        return text[:length]

    def is_token(self, text: str) -> bool:
        """Whether a text is one added token."""
        return text in self._tokens

    def token(self, ids: Sequence[int]) -> str:
        """One of these tokens."""
        return f"<[{','.join(map(str, ids))}]>"

    def _split(self, text: str) -> list[str]:
        pieces: list[str] = []
        at = 0
        for match in self._added.finditer(text):
            pieces += [text[at : match.start()], match[0]]
            at = match.end()
        return [piece for piece in (*pieces, text[at:]) if piece]

    def _piece(self, piece: str) -> str:
        if piece in self._tokens:
            return self.token([self._tokens[piece]])
        return _string(piece)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

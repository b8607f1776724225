"""Finds turns by ids, names and words of their conversations. Pure.

A query is words, which all have to be in a turn; `tool:Bash`, `key:`, `client:`, `model:`,
`state:` and `kind:` search one of its fields. Upper and lower case are the same.
"""

import re
from collections.abc import Iterator
from itertools import chain

from msgspec import Struct

from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.turns import InspectedTurn
from turnwire_tools.tap.turns import concerns

FIELDS = ("tool", "key", "client", "model", "state", "kind")
BEFORE = 24
AFTER = 100
"""Characters around a match that are shown."""
_PREFIX = re.compile(r"(?:req|msg|resp|chatcmpl|cmpl|call|toolu)[_-]")
_WHERE = {
    "user": "question",
    "system": "instructions",
    "text": "earlier answer",
    "reasoning": "earlier reasoning",
    "tool_use": "earlier call",
    "media": "image",
    "prompt": "prompt",
}
"""Names of the kinds of items."""
_WORDS = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')


class Hit(Struct, frozen=True):
    """A turn that a query finds."""

    turn: str
    where: str = ""
    """What has the words: `question`, `result of Bash`, `text`; "": the turn's own names."""
    before: str = ""
    """The text before the match."""
    match: str = ""
    after: str = ""


class SearchQuery:
    """A parsed query."""

    def __init__(self, text: str, *, texts: bool = True) -> None:
        """`texts`: False: only ids and names are searched."""
        self._texts = texts
        self._fields: list[tuple[str, str]] = []
        self._words: list[str] = []
        for name, quoted, word in _WORDS.findall(text):
            value = quoted or word
            if name in FIELDS:
                self._fields.append((name, value.casefold()))
            elif value:
                self._words.append(f"{name}:{value}" if name else value)
        self._patterns = [re.compile(re.escape(word), re.IGNORECASE) for word in self._words]

    def __bool__(self) -> bool:
        return bool(self._fields or self._words)

    def find(self, turn: InspectedTurn) -> Hit | None:
        """The place of the query's first word in a turn; None: the turn lacks a word or a field."""
        hit = Hit(turn.id)
        for name, value in self._fields:
            of_field = self._find_field(turn, name, value)
            if of_field is None:
                return None
            hit = of_field if of_field.match else hit
        for word, pattern in zip(reversed(self._words), reversed(self._patterns), strict=True):
            of_word = _find(turn, word, pattern, self._texts)
            if of_word is None:
                return None
            hit = of_word
        return hit

    def _find_field(self, turn: InspectedTurn, name: str, value: str) -> Hit | None:
        if name == "tool":
            return _find_tool(turn, value, self._texts)
        return Hit(turn.id) if value in str(getattr(turn, name)).casefold() else None


def hits(fold: Fold, query: SearchQuery) -> Iterator[Hit | None]:
    """The hits, newest first; None for each turn that is not one, so that a caller can pause."""
    for turn in list(reversed(fold.turns.values())):
        yield query.find(turn)


def _find_tool(turn: InspectedTurn, value: str, texts: bool) -> Hit | None:
    """The first call or result of a tool with this in its name, and how its text begins."""
    calls = (("call", block.name, block.text) for block in turn.blocks)
    results = ((item.kind, item.name, item.text) for item in turn.addition.items)
    for where, name, text in chain(calls, results):
        at = name.casefold().find(value)
        if at >= 0:
            end = at + len(value)
            after = f"{name[end:]} {text[:AFTER]}" if texts else name[end:]
            return Hit(turn.id, where, name[:at], name[at:end], after)
    return None


def _find(turn: InspectedTurn, word: str, pattern: re.Pattern[str], texts: bool) -> Hit | None:
    if concerns(turn.id, _PREFIX.sub("", word, count=1)):
        return Hit(turn.id)
    searched = chain(_names(turn), _texts(turn) if texts else ())
    lowered = word.lower()
    for where, text in searched:
        if lowered not in text.lower():  # ten times as fast as the pattern
            continue
        match = pattern.search(text)
        if match is not None:
            start, end = match.span()
            before = text[max(0, start - BEFORE) : start]
            return Hit(turn.id, where, before, match[0], text[end : end + AFTER])
    names = f"{turn.client}\n{turn.key}\n{turn.model}\n{turn.worker}"
    has_name = pattern.search(names) is not None or word.casefold() == turn.state
    return Hit(turn.id) if has_name else None


def _names(turn: InspectedTurn) -> Iterator[tuple[str, str]]:
    """Names and ids of calls, with names for them."""
    for item in turn.addition.items:
        yield item.kind, item.name
        yield item.kind, item.call_id
    for block in turn.blocks:
        yield "call", block.name
        yield "call", block.call_id


def _texts(turn: InspectedTurn) -> Iterator[tuple[str, str]]:
    """The texts of a turn, with names for them."""
    yield "title", turn.title
    for item in turn.addition.items:
        yield _WHERE.get(item.kind, f"result of {item.name}"), item.text
    for block in turn.blocks:
        yield f"call of {block.name}" if block.name else block.kind, block.text
    yield "end", turn.finish
    if turn.number == 1:
        for item in turn.addition.head.system:
            yield "instructions", item.text

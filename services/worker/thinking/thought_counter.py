"""Counts the reasoning tokens of a turn by their ids, against its budget.

A counter is in one of two states, and what is true in only one of them belongs to it:

                    an opener, where a thought may begin
      ┌─────────┐ ────────────────────────────────────▶ ┌───────────┐
      │ Outside │                                       │ InThought │
      └─────────┘ ◀──────────────────────────────────── └───────────┘
                    a closer, or the budget (`end_thought`)

| state     | what comes         | what follows                                                 |
|-----------|--------------------|--------------------------------------------------------------|
| Outside   | a fence            | text is code from here on, or no longer: openers are code    |
|           | an edge            | a block begins: text before it no longer counts              |
|           | an opener          | a thought, if it begins a block, a line or a sentence        |
|           |                    | outside code; else a mention                                 |
| InThought | other text         | one more token                                               |
|           | a part of a closer | one more token, which waits in the tail: it may not count    |
|           | a closer           | its tokens do not count; back to Outside                     |

A token that may belong to a closer is not counted before that is certain. So a thought that ends by
itself at the budget is left as it is. A turn in a format without edges has no mentions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from schemas.requests import FENCE, ThoughtBudget
from schemas.token_ids import unpack_ids
from services.families.grammar.mentions import is_mention

_OTHER = "\0"
_BLANKS = " \t\r\n"
_SIGN_BYTES = 8
"""Enough for a blank and the sign before it, in UTF-8."""
BANNED = -100.0
"""Bias of a token that must not be chosen."""


@dataclass(slots=True)
class _Outside:
    """The state outside thoughts."""

    text: str = ""
    """The text since the last edge."""
    is_fenced: bool = False
    """That is in a fenced code block, where an opener is code."""


@dataclass(slots=True)
class _InThought:
    """The state in an open thought."""

    tokens: int = 0
    """Its tokens, with those that may belong to a closer."""
    tail: list[str] = field(default_factory=list)
    """The texts of its last tokens, which may begin a closer."""
    over: int = 0
    """How many tokens at its end are beyond the budget, unless they turn out to be a closer."""

    @property
    def is_certainly_over(self) -> bool:
        """Whether tokens are beyond the budget that cannot be a closer."""
        return self.over > len(self.tail)

    def tail_tokens_after(self, position: int) -> int:
        """Returns how many tokens of the tail end after a position of its text."""
        return sum(end > position for end in accumulate(map(len, self.tail)))

    def cut_tail(self, position: int) -> None:
        """Keeps the tokens of the tail that end after a position of its text."""
        remaining = self.tail_tokens_after(position)
        self.tail = self.tail[len(self.tail) - remaining :]


class _Marker(NamedTuple):
    """A marker in a text. The one that ends first is the least."""

    end: int
    start: int
    text: str


class ThoughtCounter:
    """The reasoning tokens of one turn: those between an opener and a closer. Pure."""

    def __init__(self, budget: ThoughtBudget) -> None:
        self._budget = budget
        self._limit = budget.tokens
        self._texts: dict[int, str] = {}
        """Token → the text in it that matters."""
        for text, packed in budget.token_texts.items():
            self._texts.update(dict.fromkeys(unpack_ids(packed), text))
        self._markers = (*budget.openers, *budget.edges, FENCE)
        """The texts that are searched outside thoughts."""
        self._prefixes = _prefixes(budget.closers)
        self._reach = max(map(len, (*budget.openers, *budget.closers, *budget.edges)))
        self._ends = [unpack_ids(budget.end), unpack_ids(budget.answer)]
        """The ids that end the next thought; the last ones end all others, too."""
        self._state: _Outside | _InThought = _InThought() if budget.in_reasoning else _Outside()
        self.used = 0
        """The tokens of the thoughts that have ended."""
        self.rest_grammar = budget.grammar
        """Grammar of the output after an ended thought; "": it is free."""

    def __repr__(self) -> str:
        return f"<{self.used} of {self._limit} reasoning tokens used, in {self._state!r}>"

    @property
    def thinks(self) -> bool:
        """Whether a thought is open."""
        return isinstance(self._state, _InThought)

    @property
    def over(self) -> int:
        """How many tokens at the end are beyond the budget, unless they turn out to be a closer."""
        if isinstance(self._state, _InThought):
            return self._state.over
        return 0

    @property
    def is_certainly_over(self) -> bool:
        """Whether tokens of the open thought are beyond the budget that cannot be a closer."""
        return isinstance(self._state, _InThought) and self._state.is_certainly_over

    @property
    def bans(self) -> dict[int, float]:
        """Biases with which no further thought opens, if the budget is spent, and where the opener
        is one token."""
        if self.used < self._limit:
            return {}
        tokens = self._budget.token_texts
        openers = [tokens[opener] for opener in self._budget.openers if opener in tokens]
        return dict.fromkeys(unpack_ids(b"".join(openers)), BANNED)

    def count(self, token: int) -> None:
        """Counts the next token of the output."""
        text = self._texts.get(token, _OTHER)
        state = self._state
        if isinstance(state, _InThought):
            self._think(state, text)
        else:
            self._look_for_thought(state, text)

    def end_thought(self) -> list[int]:
        """Drops the tokens beyond the budget, and returns the ids that end the thought."""
        self.used = self._limit
        self._leave_thought("")
        return self._next_end()

    def _next_end(self) -> list[int]:
        if len(self._ends) > 1:
            return self._ends.pop(0)
        return self._ends[0]

    # -- the states

    def _think(self, thought: _InThought, text: str, *, counted: int = 1) -> None:
        """Takes the text of a token in a thought."""
        thought.tokens += counted
        if text == _OTHER:
            thought.tail.clear()
        else:
            thought.tail.append(text)
        tail = "".join(thought.tail)
        closer = _first_marker(tail, self._budget.closers)
        if closer is not None:
            tokens = thought.tokens - thought.tail_tokens_after(closer.start)
            # An end in the output of an earlier attempt may have tokens before this one.
            self.used = min(self.used + max(tokens, 0), self._limit)
            self._leave_thought(tail[closer.start :])  # it may be an edge, too
            return

        thought.cut_tail(self._possible_closer(tail))
        thought.over = max(self.used + thought.tokens - self._limit, 0)

    def _possible_closer(self, tail: str) -> int:
        """Returns where a text begins that may become a closer; at the end, if none does."""
        starts = (at for at in range(len(tail)) if tail[at:] in self._prefixes)
        return next(starts, len(tail))

    def _leave_thought(self, text: str) -> None:
        """Ends the thought. `text`: its closer, and what follows it."""
        self._state = _Outside()
        self._look_for_thought(self._state, text)

    def _look_for_thought(self, outside: _Outside, text: str) -> None:
        """Takes the text of a token outside thoughts."""
        text = outside.text + text
        marker = _first_marker(text, self._markers)
        while marker is not None:
            if marker.text == FENCE:
                outside.is_fenced = not outside.is_fenced
            rest = text[marker.end :]
            if self._begins_thought(marker, text, outside):
                self._open_thought(rest)
                return
            is_edge = marker.text in self._budget.edges
            text = rest if is_edge else _OTHER + rest
            marker = _first_marker(text, self._markers)

        if len(text) > 2 * self._reach:
            text = _OTHER + text[-self._reach :]
        outside.text = text

    def _begins_thought(self, marker: _Marker, text: str, outside: _Outside) -> bool:
        if marker.text not in self._budget.openers:
            return False
        if not self._budget.edges:
            return True
        return not outside.is_fenced and _counts_after(text[: marker.start])

    def _open_thought(self, rest: str) -> None:
        """Begins a thought. `rest`: the text after the opener in its last token."""
        thought = _InThought()
        self._state = thought
        if rest:
            self._think(thought, rest, counted=0)  # the opener's token is not the thought's

    # -- an earlier attempt

    def resume(self, ids: Sequence[int]) -> list[int]:
        """Counts the output of an earlier attempt. Returns the ids that must follow because a
        thought in it has spent the budget: the end of the thought, or the rest of an end that the
        earlier attempt had begun."""
        missing = 0
        for spent_at in self._count_thoughts(ids):
            missing = self._pass_end(ids[spent_at:])
        if missing:
            return self.end_thought()[-missing:]
        if self.is_certainly_over:
            return self.end_thought()
        return []

    def _count_thoughts(self, ids: Sequence[int]) -> list[int]:
        """Counts tokens. Returns where the text before them and each thought in them had spent the
        budget: an index of `ids`, or their number where it was not spent."""
        unspent = len(ids)
        spent_at = 0 if self._is_spent() else unspent
        positions: list[int] = []
        for count, token in enumerate(ids, 1):
            was_thinking = self.thinks
            self.count(token)
            if self.thinks and not was_thinking:
                positions.append(spent_at)
                spent_at = unspent
            if spent_at == unspent and self._is_spent():
                spent_at = count - self.over
        return [*positions, spent_at]

    def _is_spent(self) -> bool:
        """Whether the open thought has reached the budget, or is beyond it."""
        state = self._state
        return isinstance(state, _InThought) and self.used + state.tokens >= self._limit

    def _pass_end(self, ids: Sequence[int]) -> int:
        """Passes the end of a thought that has spent the budget, if `ids`, the tokens after it,
        begin with that. Returns how many ids of the end are missing, if `ids` break off in it; else
        0."""
        end = self._ends[0]
        written = list(ids[: len(end)])
        if written == end:
            self._next_end()
            return 0
        if written and written == end[: len(written)]:
            return len(end) - len(written)
        return 0


def _prefixes(closers: Iterable[str]) -> set[str]:
    """Returns what a closer may begin with, without whole closers."""
    prefixes: set[str] = set()
    for closer in closers:
        prefixes.update(closer[:length] for length in range(1, len(closer)))
    return prefixes


def _first_marker(text: str, markers: Iterable[str]) -> _Marker | None:
    """Returns the marker that ends first."""
    starts = ((text.find(marker), marker) for marker in markers)
    places = [_Marker(at + len(marker), at, marker) for at, marker in starts if at >= 0]
    return min(places, default=None)


def _counts_after(before: str) -> bool:
    """Whether an opener after this text, which follows an edge, begins a thought.

    The rule is the parser's. But the worker does not see what follows the opener, nor a sign that
    shares its token with letters or digits of ASCII, or that is split between tokens.
    """
    bare = before.rstrip(_BLANKS)
    if not bare or "\n" in before[len(bare) :]:
        return True
    end = before[-_SIGN_BYTES:].encode("latin-1").decode(errors="replace")
    return not is_mention(end)

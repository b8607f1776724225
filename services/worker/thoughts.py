"""Ends a turn's reasoning at its budget.

`ThoughtCounter` counts reasoning tokens by their ids. `BudgetedTurn` is the sink of a turn with a
budget: when that is spent, it stops the engine, ends the thought in the turn's stream, and has the
turn continued from there.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from schemas.events import FinishReason
from schemas.frames import FENCE, ThoughtBudget, unpack_ids
from services.worker.decoding import Decoding
from services.worker.engine import Delta

_OTHER = "\0"
_BLANKS = " \t\r\n"
_BEFORE = "`'\"([{<>/=|*_"
"""Signs that precede an opener that is mentioned."""
_SENTENCE_ENDS = ".!?:"
BANNED = -100.0
"""Bias of a token that must not be chosen."""


class ThoughtCounter:
    """The reasoning tokens of one turn: those between an opener and a closer. Pure.

    A token that may belong to a closer is not counted before that is certain. So a thought that
    ends by itself at the budget is left as it is.
    """

    def __init__(self, budget: ThoughtBudget) -> None:
        self._budget = budget
        self._texts = {
            token: text for text, packed in budget.spelling.items() for token in unpack_ids(packed)
        }
        self._prefixes = {closer[:n] for closer in budget.closers for n in range(1, len(closer))}
        self._reach = max(map(len, (*budget.openers, *budget.closers, *budget.edges)))
        self._limit = budget.tokens
        self._ends = [unpack_ids(budget.end), unpack_ids(budget.answer)]
        self.thinks = budget.in_reasoning
        """Whether a thought is open."""
        self.used = 0
        """The tokens of the thoughts that have ended."""
        self._tokens = 0
        """The tokens of the open thought, with those that may belong to a closer."""
        self._tail: list[str] = []
        """In a thought: the texts of its last tokens, which may begin a closer."""
        self._text = ""
        """Else the text since the last edge."""
        self._fenced = False
        """That is in a fenced code block, where an opener is code."""
        self.excess = 0
        """How many tokens at the end are beyond the budget, unless they turn out to be a closer."""
        self.over = False
        """It is certain that the budget is exceeded."""

    @property
    def bans(self) -> dict[int, float]:
        """Biases with which no further thought opens, if the budget is spent, and where the opener
        is one token."""
        spelling = self._budget.spelling
        openers = [spelling[opener] for opener in self._budget.openers if opener in spelling]
        return dict.fromkeys(
            unpack_ids(b"".join(openers)) if self.used >= self._limit else (), BANNED
        )

    def take(self, token: int) -> None:
        """Takes the next token of the output."""
        text = self._texts.get(token, _OTHER)
        if self.thinks:
            self._think(text)
        else:
            self._look_for_thought(text)

    def end_thought(self) -> list[int]:
        """Drops the tokens beyond the budget, and returns the ids that end the thought."""
        self.used = self._limit
        self._leave("")
        return self._next_end()

    def resume(self, ids: Sequence[int]) -> list[int]:
        """Takes the output of an earlier attempt. Returns the ids that must follow because a
        thought in it had spent the budget, also where it had sent a part of them."""
        spent = 0 if self.thinks and not self._limit else None
        for count, token in enumerate(ids, 1):
            thinks = self.thinks
            self.take(token)
            if self.thinks and not thinks:
                self._end_sent(ids, spent)
                spent = None
            if spent is None and self.thinks and self.used + self._tokens >= self._limit:
                spent = count - self.excess
        if left := self._end_sent(ids, spent):
            return self.end_thought()[-left:]
        return self.end_thought() if self.over else []

    def _end_sent(self, ids: Sequence[int], spent: int | None) -> int:
        """Takes the end of a thought where `ids[spent:]` begin with it. Returns how many of its ids
        are missing, if they are a part of it, else 0."""
        rest, end = [] if spent is None else list(ids[spent:]), self._ends[0]
        if rest[: len(end)] == end:
            self._next_end()
            return 0
        return len(end) - len(rest) if rest and rest == end[: len(rest)] else 0

    def _next_end(self) -> list[int]:
        return self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]

    def _think(self, text: str) -> None:
        self._tokens += 1
        self._tail = [] if text == _OTHER else [*self._tail, text]
        tail = "".join(self._tail)
        if found := _first(tail, self._budget.closers):
            used = self.used + max(self._tokens - self._tokens_from(found[1]), 0)
            self.used = min(
                used, self._limit
            )  # an end in the output of an earlier attempt may have tokens before this
            self._leave(tail[found[1] :])
            return
        partial = next((at for at in range(len(tail)) if tail[at:] in self._prefixes), len(tail))
        self._tail = self._tail[len(self._tail) - self._tokens_from(partial) :]
        self.excess = max(self.used + self._tokens - self._limit, 0)
        self.over = self.excess > len(self._tail)

    def _tokens_from(self, position: int) -> int:
        """The number of the tokens in `_tail` that end after a position of its text."""
        return sum(end > position for end in accumulate(map(len, self._tail)))

    def _leave(self, text: str) -> None:
        """Ends the thought; `text` has come since."""
        self.thinks = self.over = False
        self._tokens = self.excess = 0
        self._look_for_thought(text)

    def _look_for_thought(self, text: str) -> None:
        openers, edges = self._budget.openers, self._budget.edges
        text = self._text + text
        while found := _first(text, (*openers, *edges, FENCE)):
            end, start, marker = found
            if marker == FENCE:
                self._fenced = not self._fenced
            if marker in openers and (
                not edges or (_opens_thought(text[:start]) and not self._fenced)
            ):
                self.thinks, self._text, self._tail = True, "", []
                if text[end:]:
                    self._tokens = -1  # the token with the opener's end is not the thought's
                    self._think(text[end:])
                return
            text = text[end:] if marker in edges else _OTHER + text[end:]
        self._text = text if len(text) <= 2 * self._reach else _OTHER + text[-self._reach :]


def _first(text: str, markers: Iterable[str]) -> tuple[int, int, str] | None:
    """The marker that ends first: its end, its start, and the marker."""
    found = [(at + len(marker), at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    return min(found, default=None)


def _opens_thought(before: str) -> bool:
    """Whether an opener after this text, which follows an edge, is more than a mention, as parsers
    see it: it begins a line or a sentence, or nothing sets it apart from the text before it."""
    bare = before.rstrip(_BLANKS)
    blanks = before[len(bare) :]
    if not bare or "\n" in blanks:
        return True
    return bare[-1] in _SENTENCE_ENDS if blanks else bare[-1] not in _BEFORE


class BudgetedTurn:
    """The sink of one turn with a budget of reasoning tokens."""

    def __init__(
        self,
        decoding: Decoding,
        counter: ThoughtCounter,
        max_tokens: int,
        continue_turn: "Callable[[BudgetedTurn], object]",
    ) -> None:
        """`max_tokens`: the turn's limit of output, with that of earlier attempts. `continue_turn`:
        called when a thought was ended; has the turn decoded after all of its stream's ids, with
        this sink, but not within the call.
        """
        self.decoding = decoding
        self.fail = decoding.fail
        self.counter = counter
        self._max_tokens = max_tokens
        self._continue = continue_turn
        self._held = Delta()
        """The last tokens, which are beyond the budget if they are not a closer."""
        self._continued = False

    def put(self, delta: Delta) -> None:
        """Adds an engine step's result to the stream, or ends the thought."""
        counter, held = self.counter, len(self._held.ids)
        ids = self._held.ids + delta.ids
        logprobs = None
        if delta.logprobs is not None or self._held.logprobs:
            logprobs = (self._held.logprobs or []) + (delta.logprobs or [[] for _ in delta.ids])
        if (
            self._continued
        ):  # the prompt is then the turn so far, which says nothing of the turn's own prompt
            delta.cached = delta.waited_s = None
        for count, token in enumerate(delta.ids, held + 1):
            counter.take(token)
            if counter.over:
                self._end_thought(delta, ids[: max(count - counter.excess, 0)], logprobs)
                return
        kept = len(ids) if delta.finish is not None else len(ids) - min(counter.excess, len(ids))
        self._held = Delta(ids[kept:], logprobs and logprobs[kept:])
        delta.ids, delta.logprobs = ids[:kept], logprobs if logprobs is None else logprobs[:kept]
        if delta.ids or delta.cached is not None or delta.finish is not None:
            self.decoding.put(delta)

    def _end_thought(
        self, delta: Delta, ids: list[int], logprobs: list[list[tuple[int, float]]] | None
    ) -> None:
        decoding = self.decoding
        if decoding.handle is not None:
            decoding.handle.close()
            decoding.handle = None
        self._held, self._continued = Delta(), True
        room = self._max_tokens - len(decoding.stream.ids) - len(ids)
        end = self.counter.end_thought()[:room]
        finish = FinishReason.LENGTH if len(end) == room else None
        scores = logprobs and [
            *logprobs[: len(ids)],
            *([] for _ in end),
        ]  # the model did not choose the end's tokens
        decoding.put(Delta(ids + end, scores, delta.cached, finish, waited_s=delta.waited_s))
        if finish is None:
            self._continue(self)

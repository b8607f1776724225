"""Ends a turn's reasoning at its budget.

`ThoughtCounter` counts reasoning tokens by their ids. `BudgetedTurn` is the sink of a turn with a budget: when that is
spent, it stops the engine, ends the thought in the turn's stream, and has the turn continued from there.
"""

from collections.abc import Callable, Sequence

from schemas.events import FinishReason
from schemas.frames import ThoughtBudget, unpack_ids
from services.worker.decoding import Decoding
from services.worker.engine import Delta

_OTHER = "\0"
_BLANKS = " \t\r\n"


class ThoughtCounter:
    """The reasoning tokens of one turn: those between an opener and a closer. Pure.

    A token that may belong to a closer is not counted before that is certain. So a thought that ends by itself at the
    budget is left as it is.
    """

    def __init__(self, budget: ThoughtBudget) -> None:
        marks = budget.marks
        self._texts = {token: text for text, packed in marks.spelling.items() for token in unpack_ids(packed)}
        self._openers, self._closers, self._edges = marks.openers, marks.closers, marks.edges
        self._prefixes = {closer[:n] for closer in marks.closers for n in range(1, len(closer))}
        self._reach = max(map(len, (*marks.openers, *marks.closers, *marks.edges)))
        self._limit = budget.tokens
        self._ends = [unpack_ids(marks.end), unpack_ids(marks.answer)]
        self._inside = budget.in_reasoning
        self.used = 0
        """The tokens of the thoughts that have ended."""
        self._tokens = 0
        """The tokens of the open thought, with those that may belong to a closer."""
        self._text = ""
        """The end of the output: in a thought as much as a closer may begin in, else since the last edge."""
        self._sizes: list[int] = []
        """The length of each token's text in `_text`, in a thought."""
        self.excess = 0
        """How many tokens at the end are beyond the budget, unless they turn out to be a closer."""
        self.over = False
        """It is certain that the budget is exceeded."""

    def take(self, token: int) -> None:
        """Takes the next token of the output."""
        text = self._texts.get(token, _OTHER)
        if self._inside:
            self._think(text)
        else:
            self._look_for_thought(text)

    def end_thought(self) -> list[int]:
        """Drops the tokens beyond the budget, and returns the ids that end the thought."""
        self.used = self._limit
        self._leave("")
        return self._spent()

    def resume(self, ids: Sequence[int]) -> list[int]:
        """Takes the output of an earlier attempt. Returns the ids that must follow because that had spent the budget,
        also where it had sent a part of them."""
        spent = 0 if self._inside and not self._limit else None
        for count, token in enumerate(ids, 1):
            self.take(token)
            if spent is None and self._inside and self.used + self._tokens >= self._limit:
                spent = count - self.excess
        end, rest = self._ends[0], [] if spent is None else list(ids[spent:])
        if rest[: len(end)] == end:
            self._spent()
        elif rest and rest == end[: len(rest)]:
            return self.end_thought()[len(rest) :]
        return self.end_thought() if self.over else []

    def _spent(self) -> list[int]:
        return self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]

    def _think(self, text: str) -> None:
        self._tokens += 1
        if text == _OTHER:
            self._text, self._sizes = "", []
        else:
            self._text += text
            self._sizes.append(len(text))
            if (at := self._closer()) >= 0:
                self.used += self._tokens - self._tokens_from(at)
                self._leave(self._text[at:])
                return
            pending = self._tokens_from(self._partial())
            self._sizes = self._sizes[len(self._sizes) - pending :]
            self._text = self._text[len(self._text) - sum(self._sizes) :]
        self.excess = max(self.used + self._tokens - self._limit, 0)
        self.over = self.excess > len(self._sizes)

    def _closer(self) -> int:
        """The position of the closer that ends first; -1 if there is none."""
        text = self._text
        found = [(text.find(closer) + len(closer), text.find(closer)) for closer in self._closers if closer in text]
        return min(found)[1] if found else -1

    def _partial(self) -> int:
        """The position of the text at the end that may be the beginning of a closer."""
        text = self._text
        return next((at for at in range(len(text)) if text[at:] in self._prefixes), len(text))

    def _tokens_from(self, position: int) -> int:
        """The number of the thought's tokens that end after a position of `_text`."""
        count, end = 0, len(self._text)
        while end > position and count < len(self._sizes):
            count += 1
            end -= self._sizes[-count]
        return count

    def _leave(self, text: str) -> None:
        """Ends the thought; `text` has come since."""
        self._inside, self.over = False, False
        self._tokens = self.excess = 0
        self._text, self._sizes = "", []
        self._look_for_thought(text)

    def _look_for_thought(self, text: str) -> None:
        text = self._text + text
        while found := min((m for m in map(_finder(text), (*self._openers, *self._edges)) if m), default=None):
            end, start, marker = found
            if marker in self._openers and (not self._edges or _begins_line(text[:start])):
                self._inside, self._text, self._sizes = True, "", []
                if text[end:]:
                    self._think(text[end:])
                return
            text = text[end:] if marker in self._edges else _OTHER + text[end:]
        if len(text) > 2 * self._reach:
            text = _OTHER + text[-self._reach :]
        self._text = text


def _finder(text: str) -> Callable[[str], tuple[int, int, str] | None]:
    """Returns a function that finds a marker: its end, its start, and the marker."""

    def find(marker: str) -> tuple[int, int, str] | None:
        at = text.find(marker)
        return None if at < 0 else (at + len(marker), at, marker)

    return find


def _begins_line(before: str) -> bool:
    """Whether a marker after this text, which follows an edge, is at the start of a line or of a block."""
    bare = before.rstrip(_BLANKS)
    return not bare or "\n" in before[len(bare) :]


class BudgetedTurn:
    """The sink of one turn with a budget of reasoning tokens."""

    def __init__(
        self,
        decoding: Decoding,
        counter: ThoughtCounter,
        max_tokens: int,
        continue_turn: "Callable[[BudgetedTurn], object]",
    ) -> None:
        """`max_tokens`: the turn's limit of output, with that of earlier attempts. `continue_turn`: called when a
        thought was ended; has the turn decoded after all of its stream's ids, with this sink, but not within the call.
        """
        self.decoding = decoding
        self.fail = decoding.fail
        self._counter = counter
        self._max_tokens = max_tokens
        self._continue = continue_turn
        self._held: list[int] = []
        """The last tokens, which are beyond the budget if they are not a closer."""
        self._held_logprobs: list[list[tuple[int, float]]] = []
        self._continued = False

    def put(self, delta: Delta) -> None:
        """Adds an engine step's result to the stream, or ends the thought."""
        counter = self._counter
        ids = self._held + delta.ids
        logprobs = delta.logprobs and self._held_logprobs + delta.logprobs
        if self._continued:  # the prompt is then the turn so far, which says nothing of the turn's own prompt
            delta.cached = delta.waited_s = None
        for at, token in enumerate(delta.ids, len(self._held) + 1):
            counter.take(token)
            if counter.over:
                self._end_thought(delta, ids[: at - counter.excess], logprobs)
                return
        kept = len(ids) if delta.finish is not None else len(ids) - min(counter.excess, len(ids))
        self._held, self._held_logprobs = ids[kept:], logprobs[kept:] if logprobs else []
        delta.ids, delta.logprobs = ids[:kept], logprobs[:kept] if logprobs else None
        if delta.ids or delta.cached is not None or delta.finish is not None:
            self.decoding.put(delta)

    def _end_thought(self, delta: Delta, ids: list[int], logprobs: list[list[tuple[int, float]]] | None) -> None:
        decoding = self.decoding
        if decoding.handle is not None:
            decoding.handle.close()
            decoding.handle = None
        self._held, self._held_logprobs, self._continued = [], [], True
        room = self._max_tokens - len(decoding.stream.ids) - len(ids)
        end = self._counter.end_thought()[:room]
        finish = FinishReason.LENGTH if len(end) == room else None
        scores = [*logprobs[: len(ids)], *([] for _ in end)] if logprobs else None  # nobody chose the end's tokens
        decoding.put(Delta(ids + end, scores, delta.cached, finish, waited_s=delta.waited_s))
        if finish is None:
            self._continue(self)

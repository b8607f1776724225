"""Finds where a turn of the model begins and ends in the text that a template rendered."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from schemas.conversation import Text
from services.ledger.prompt.model import LedgerModel
from services.ledger.turns.turn import TurnOutput
from services.tokenization.segments import alternatives, common_prefix

MAX_ENDS = 16
"""Limit of places that are tried as the end of a turn's stretch: a turn that quotes end tokens has
several."""


class TurnEnds:
    """The header and the end tokens of one model's turns. Thread-safe."""

    def __init__(self, model: LedgerModel) -> None:
        self._header = model.header
        self._markers = model.family.markers
        self._end_token = pattern_of(model.ends)
        joint = model.family.style.joint
        between_messages = [joint] if joint else model.family.markers
        starts = [model.header, *between_messages]
        self._starts = tuple(text for text in starts if text and text not in model.ends)
        """The texts with which more output of the model begins, after an end token."""

    def of(self, text: str, start: int, output: TurnOutput) -> Iterator[int]:
        """Where a turn that begins at `start` may end."""
        return chain(
            self._before_end_tokens(text, start), self._after_last_words(text, start, output)
        )

    def has_foreign_end(self, stretch: str, original: str) -> bool:
        """Whether a stretch holds an end token that the turn does not quote and that more of the
        model's output does not follow: text that a parser passes over between messages may be
        another role's."""
        quotes = Counter(self._end_token.findall(original))
        for match in self._end_token.finditer(stretch):
            after = stretch[match.end() :].lstrip()
            if not after.startswith(self._starts):
                quotes[match[0]] -= 1
                if quotes[match[0]] < 0:
                    return True
        return False

    def without_header(self, stretch: str) -> str:
        """A stretch without the header of the model's messages. A template may write none when the
        model continues after a result, but one when all is history (some Gemma 4)."""
        if not self._header:
            return stretch
        text = stretch.lstrip()
        return text[len(self._header) :] if text.startswith(self._header) else stretch

    def _before_end_tokens(self, text: str, start: int) -> Iterator[int]:
        for match in islice(self._end_token.finditer(text, start), MAX_ENDS):
            yield match.start()

    def _after_last_words(self, text: str, start: int, output: TurnOutput) -> Iterator[int]:
        """For a template that writes no end of turn (Apertus, before a result): after the marker,
        or else the text, with which the turn itself ends."""
        bare = output.text.rstrip()
        blanks = output.text[len(bare) :]
        last_words = self._last_words(bare, output)
        if not last_words:
            return

        end = start
        for _ in range(MAX_ENDS):
            offset = text.find(last_words, end)
            if offset < 0:
                return
            end = offset + len(last_words)
            same_blanks = common_prefix(blanks, text[end : end + len(blanks)])
            yield end + len(same_blanks)

    def _last_words(self, bare: str, output: TurnOutput) -> str:
        for marker in self._markers:
            if bare.endswith(marker):
                return marker
        last = output.parts[-1]
        return last.text.strip() if isinstance(last, Text) else ""


def pattern_of(words: Iterable[str]) -> "re.Pattern[str]":
    """A pattern for any of these words, the longest; without words one that matches nothing."""
    words = sorted(words)
    return re.compile(alternatives(words) if words else "(?!)")

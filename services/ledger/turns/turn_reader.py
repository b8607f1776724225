"""Reads turns as the parser stage does: text from tokens, and parts from text."""

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from schemas.conversation import Call, Reasoning, Text, ToolSpec
from schemas.events import BlockStart, FinishReason, blocks_of
from schemas.ledger import LedgerEntry
from schemas.token_ids import unpack_ids
from services.families import Family, TurnParser, open_parser
from services.ledger.turns.chain import text_and_calls
from services.ledger.turns.keys import squeeze, turn_key
from services.ledger.turns.turn import Turn, TurnOutput, TurnPart
from services.tokenization.detokenizer import FamilyVocabulary, Vocabulary, tokens_within

_NOTHING = re.compile("(?!)")
"""A pattern that matches nothing."""
_OPENING_CHARS = 256
"""Limit of the turn opening at a prompt's end."""


class ParseMode(NamedTuple):
    """The state in which a turn's text is parsed: arguments of `open_parser`."""

    in_reasoning: bool
    prefix: str = ""
    calls_as_text: bool = False
    closed: bool = True
    """The turn was not cut off."""

    @classmethod
    def of(cls, entry: LedgerEntry) -> "ParseMode":
        """The mode in which the parser read the entry's turn."""
        return cls(entry.in_reasoning, entry.prefix, entry.calls_as_text, entry.closed)


class TurnReader:
    """Reads turns of one model. Thread-safe."""

    def __init__(
        self, family: Family, vocabulary: Vocabulary, placeholder: int | None = None
    ) -> None:
        """`placeholder`: a token with which no turn is read (`LedgerModel.placeholder`)."""
        self._family = family
        self._vocabulary = FamilyVocabulary(vocabulary, family)
        self._placeholder = placeholder
        self._opening = _NOTHING
        self._empty_thought = _NOTHING
        if family.think is not None:
            opener, closer = map(_marker, family.think)
            self._opening = re.compile(rf"\s*(?:{opener}\s*(?:{closer}\s*)?|{closer}\s*)\Z")
            self._empty_thought = re.compile(rf"\A\s*(?:{opener}\s*)?{closer}\s*")

    def head_end(self, prompt: str, prefix: str) -> int:
        """Where the turn opening begins at a prompt's end: the markers which open the turn's
        reasoning, open and close it, or only close it. `prefix`: a forced call's opening, which
        follows them."""
        end = len(prompt) - len(prefix)
        start = max(end - _OPENING_CHARS, 0)
        opening = self._opening.search(prompt[start:end])
        if opening is None:
            return end
        return start + opening.start()

    def text_of(self, ids: Iterable[int]) -> str:
        """The text that a parser receives for these tokens."""
        decoder = self._vocabulary.open()
        return decoder.feed(list(ids)) + decoder.flush()

    def tokens_within(self, ids: Iterable[int], chars: int) -> tuple[int, int]:
        """How many tokens end within the first characters of a turn's text, and how many characters
        they have."""
        decoder = self._vocabulary.open()
        sizes = (len(decoder.step(token)) for token in ids)
        lengths = [*accumulate(sizes, initial=0)]
        count = tokens_within(lengths, chars)
        return count, lengths[count]

    def open(self, tools: list[ToolSpec], mode: ParseMode) -> TurnParser:
        """A parser for one turn."""
        return open_parser(
            self._family.name,
            tools=tools,
            in_reasoning=mode.in_reasoning,
            prefix=mode.prefix,
            calls_as_text=mode.calls_as_text,
        )

    def read(self, text: str, tools: list[ToolSpec], mode: ParseMode) -> list[TurnPart] | None:
        """The parts of a turn with this text, up to an incomplete call; None if the turn was not
        cut off there."""
        parser = self.open(tools, mode)
        reason = FinishReason.STOP if mode.closed else FinishReason.LENGTH
        events = [*parser.feed(text), *parser.finish(reason)]
        parts: list[TurnPart] = []
        for start, written, stop in blocks_of(events):
            if start.kind == "tool_use" and (stop is None or not stop.complete):
                return None if mode.closed else parts
            parts.append(_part(start, written))
        return parts

    def after_opening(self, stretch: str, opening: str, mode: ParseMode) -> tuple[str, ParseMode]:
        """The rendered turn after its turn opening, and its mode. The template may write another
        opening: reasoning open, closed at once, or without markers."""
        if stretch.startswith(opening):
            return stretch[len(opening) :], mode._replace(closed=True)
        stretch = self._empty_thought.sub("", stretch, count=1)
        return stretch, ParseMode(in_reasoning=False, calls_as_text=mode.calls_as_text)

    def read_entry(self, entry: LedgerEntry, tools: list[ToolSpec]) -> TurnOutput | None:
        """The text and parts of an entry's turn; None where its tokens cannot be read, or not be
        reused."""
        try:
            ids = unpack_ids(entry.ids)
            text = self.text_of(ids) + entry.tail
        except (ValueError, IndexError, OverflowError, TypeError):
            return None
        if self._placeholder in ids:
            return None
        parts = self.read(text, tools, ParseMode.of(entry))
        if parts is None:
            return None
        return TurnOutput(text, parts)

    def output_of(self, turn: Turn, tools: list[ToolSpec]) -> TurnOutput | None:
        """What the model wrote in a turn, read once; None where it is not the turn of the entry's
        key."""
        if turn.output is None and not turn.unreadable:
            turn.output = self._read_checked(turn.entry, tools)
            turn.unreadable = turn.output is None
        return turn.output

    def _read_checked(self, entry: LedgerEntry, tools: list[ToolSpec]) -> TurnOutput | None:
        output = self.read_entry(entry, tools)
        if output is None or _has_key(output, entry):
            return output
        # The last token of a beginning may have the first characters of the part after it.
        shorter = TurnOutput(output.text, output.parts[:-1])
        if entry.beginning and _has_key(shorter, entry):
            return shorter
        return None


def _has_key(output: TurnOutput, entry: LedgerEntry) -> bool:
    """Whether this is the turn of the entry's key."""
    if not output.parts:
        return False
    text, calls = text_and_calls(output.parts)
    return entry.key == turn_key(entry.context.state, entry.context.started + squeeze(text), calls)


def _part(start: BlockStart, text: str) -> TurnPart:
    if start.kind == "tool_use":
        return Call("", start.name or "", text, original_id=start.call_id)
    return Reasoning(text) if start.kind == "reasoning" else Text(text)


def _marker(text: str) -> str:
    """A marker as a pattern; a tokenizer may add to its name (`<think:opensource>`)."""
    text = text.strip()
    if text.endswith(">"):
        return re.escape(text.removesuffix(">")) + r"[\w:]*>"
    return re.escape(text)

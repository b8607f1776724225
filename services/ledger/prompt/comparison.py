"""Compares the turns of a rendered prompt with what the model wrote: whether the prompt can have a
turn's original tokens, and up to where.

A rendered text may have data marks (`services/tokenization/data_marks.py`): each replaces one
character, so that a position is the same with and without them.
"""

from collections.abc import Iterable

from msgspec import Struct

from schemas.conversation import Call, ToolSpec
from schemas.ledger import ParentTurn
from schemas.token_ids import unpack_ids
from services.ledger.prompt.cut_turns import CutTurns
from services.ledger.prompt.model import LedgerModel
from services.ledger.prompt.rendered_turns import OriginalTurn, RenderedTurns
from services.ledger.prompt.turn_ends import TurnEnds
from services.ledger.turns.turn import Turn, TurnPart
from services.ledger.turns.turn_reader import ParseMode, TurnReader
from services.tokenization.segments import TokenIds


class KeptTurn(Struct, frozen=True):
    """A turn that a rendered prompt still contains, so that the prompt can have its original
    tokens."""

    turn: Turn
    place: ParentTurn

    def ids(self) -> TokenIds:
        """The turn's ids in the prompt."""
        return self.turn.ids(self.place.tokens)


class TurnComparison:
    """Compares turns of one model with rendered text. Thread-safe."""

    def __init__(self, model: LedgerModel, reader: TurnReader) -> None:
        self._encoder = model.encoder
        self._reader = reader
        self._ends = TurnEnds(model)
        self._turns = RenderedTurns(model, reader)
        self._cut_turns = CutTurns(model, reader, self._turns)

    def find(self, turn: Turn, text: str, tools: list[ToolSpec]) -> KeptTurn | None:
        """The turn in a prompt's text that begins with the turn's own prompt head; None where the
        template renders it differently."""
        output = self._reader.output_of(turn, tools)
        assert output is not None  # an entry with the same tokens was read when it was chosen
        context = turn.entry.context
        mode = ParseMode.of(turn.entry)
        original = OriginalTurn(output, context.opening, tools, mode)
        if not turn.entry.closed:
            return self._find_cut(turn, original, text)

        start = context.head_chars
        least_chars = _longest_text(original.output.parts)
        for end in self._ends.of(text, start, output):
            if end - start >= least_chars and self._is_rendered(original, text[start:end]):
                return KeptTurn(turn, ParentTurn(turn.entry.mac, end))
        return None

    def _find_cut(self, turn: Turn, original: OriginalTurn, text: str) -> KeptTurn | None:
        """Finds a turn that was cut off: up to where the template's text is the turn's."""
        entry = turn.entry
        rendered = self._ends.without_header(self._encoder.plain(text[entry.context.head_chars :]))
        agreement = self._cut_turns.agreement(original, rendered)
        if agreement is None:
            return None
        if self._ends.has_foreign_end(rendered[: agreement.rendered], original.output.text):
            return None

        start = len(text) - len(rendered)
        end = start + agreement.rendered
        if agreement.written == len(original.output.text):
            return KeptTurn(turn, ParentTurn(entry.mac, end, joint=entry.tail))
        ids = unpack_ids(entry.ids)
        tokens, chars = self._reader.tokens_within(ids, agreement.written)
        joint = original.output.text[chars : agreement.without_blanks]
        if not tokens:
            return None
        return KeptTurn(turn, ParentTurn(entry.mac, end, tokens, joint))

    def _is_rendered(self, original: OriginalTurn, stretch: str) -> bool:
        """Whether a stretch of the prompt's text is the whole turn, with or without the control
        tokens that a parser never receives. It begins where the prompt's turn opening began."""
        stretch = self._ends.without_header(self._encoder.plain(stretch))
        if self._ends.has_foreign_end(stretch, original.output.text):
            return False
        return any(
            self._turns.is_read_as(original, form) for form in self._turns.forms(original, stretch)
        )


def _longest_text(parts: Iterable[TurnPart]) -> int:
    """The characters of the longest text or thought of a turn, without white space around it."""
    texts = [part.text or "" for part in parts if not isinstance(part, Call)]
    return max((len(text.strip()) for text in texts), default=0)

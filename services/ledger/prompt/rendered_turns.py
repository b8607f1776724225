"""Reads text that a template rendered for a turn of the model, in each form that a parser may
read."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from schemas.conversation import Call, ToolSpec
from services.ledger.prompt.model import LedgerModel
from services.ledger.prompt.normalized_parts import same_parts
from services.ledger.prompt.turn_ends import pattern_of
from services.ledger.turns.turn import TurnOutput, TurnPart
from services.ledger.turns.turn_reader import ParseMode, TurnReader
from services.templates.tools import arguments_of


class OriginalTurn(NamedTuple):
    """A turn as the model wrote it, and how its text is parsed."""

    output: TurnOutput
    opening: str
    """The turn opening of its prompt."""
    tools: list[ToolSpec]
    mode: ParseMode


class RenderedTurns:
    """Reads the rendered turns of one model. Thread-safe."""

    def __init__(self, model: LedgerModel, reader: TurnReader) -> None:
        self._model = model
        self._reader = reader
        self._style = model.family.style
        controls = model.encoder.cuts.tokens
        hidden = set(controls).difference(model.family.markers)
        if any(token in model.header for token in controls):
            hidden.add(model.header)
        self._hidden_text = pattern_of(hidden)
        """Tokens that a parser never receives, though templates write their text, and the header
        with its words."""

    def forms(self, original: OriginalTurn, stretch: str) -> Iterator[str]:
        """Texts that a parser may read as the stretch: as the template renders it, and with the
        turn's calls in the family's own spelling."""
        yield stretch
        readable = self._with_readable_calls(original, stretch)
        if readable:
            yield readable

    def _with_readable_calls(self, original: OriginalTurn, stretch: str) -> str:
        """The stretch with the turn's calls in the family's own spelling, where the template writes
        them in another: some print strings unescaped (LFM2.5), so that no parser reads the value
        back. Empty where the stretch lacks the template's spelling.
        """
        written = ""
        end = 0
        for is_call, run in groupby(original.output.parts, _is_call):
            if not is_call:
                continue
            calls = [part for part in run if isinstance(part, Call)]
            rendered = self._model.written_calls(calls)
            start = stretch.find(rendered, end)
            if not rendered or start < 0:
                return ""
            readable = [self._style.write_call(call.name, arguments_of(call)) for call in calls]
            written += stretch[end:start] + self._style.joint.join(readable)
            end = start + len(rendered)
        if not end:
            return ""
        return written + stretch[end:]

    def is_read_as(self, original: OriginalTurn, stretch: str) -> bool:
        """Whether a parser reads the turn in a stretch, or in the stretch without the tokens that
        it never receives."""
        if self._parses_to(original, stretch):
            return True
        hidden = self._hidden_text
        if hidden.search(stretch) is None:
            return False
        opening = hidden.sub("", original.opening)
        return self._parses_to(original._replace(opening=opening), hidden.sub("", stretch))

    def _parses_to(self, original: OriginalTurn, stretch: str) -> bool:
        text, mode = self._reader.after_opening(stretch, original.opening, original.mode)
        if text == original.output.text and mode == original.mode:
            return True  # the parts are those that a parser read in this text
        parts = self._reader.read(text, original.tools, mode)
        return parts is not None and same_parts(original.output.parts, parts)


def _is_call(part: TurnPart) -> bool:
    return isinstance(part, Call)

"""Compares a turn that was cut off with the text that a template renders for it: up to where they
agree.

The template closes the turn's last part. After it the turn may lack text, or have what no template
writes: a separator, the beginning of a call.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from schemas.conversation import Call, ToolSpec
from schemas.events import BlockStart, BlockStop
from services.families import TurnParser
from services.ledger.prompt.model import LedgerModel
from services.ledger.prompt.normalized_parts import normalized
from services.ledger.prompt.rendered_turns import OriginalTurn, RenderedTurns
from services.ledger.prompt.turn_ends import MAX_ENDS, pattern_of
from services.ledger.turns.turn import TurnPart
from services.ledger.turns.turn_reader import ParseMode, TurnReader
from services.tokenization.segments import common_prefix

_MOST_RENDERED = 8
"""Characters of a turn that a template renders, at most, for each that the model wrote: it may
escape them."""
_SPARE_CHARS = 256
"""Characters that a template renders beside those: its turn opening."""
_PIECE_CHARS = 512
_MAX_SEPARATOR_CHARS = 16
"""Limit of the characters after a call that are examined one by one, without white space."""


class Agreement(NamedTuple):
    """The characters that a turn which was cut off and its rendered text have in common."""

    written: int
    """In the text that the model wrote, with white space after them."""
    without_blanks: int
    """Leaves out white space that the template does not render."""
    rendered: int
    """In the text that the template rendered."""


class CutTurns:
    """Compares turns of one model that were cut off. Thread-safe."""

    def __init__(self, model: LedgerModel, reader: TurnReader, turns: RenderedTurns) -> None:
        self._reader = reader
        self._turns = turns
        self._control_text = pattern_of(model.encoder.cuts.tokens)

    def agreement(self, original: OriginalTurn, rendered: str) -> Agreement | None:
        """Up to where a turn that was cut off agrees with the text that the template renders for
        it. None where the template renders another turn.

        `rendered` begins where the prompt's turn opening began, and may go on after the turn.
        """
        rendered = rendered[: _MOST_RENDERED * len(original.output.text) + _SPARE_CHARS]
        written_rest = self._after_written_parts(original)
        if written_rest is None or not rendered:
            return None
        rendered_rest = self._after_rendered_parts(original, rendered)
        if rendered_rest is None:
            return None

        same = len(common_prefix(written_rest, rendered_rest))
        same = self._outside_control(rendered_rest, same)
        not_rendered = written_rest[same:]
        not_written = rendered_rest[same:]
        return Agreement(
            written=len(original.output.text) - len(not_rendered.lstrip()),
            without_blanks=len(original.output.text) - len(not_rendered),
            rendered=len(rendered) - len(not_written),
        )

    def _after_written_parts(self, original: OriginalTurn) -> str | None:
        """The text that the model wrote after the last part of its turn."""
        text = original.output.text
        parts = normalized(original.output.parts)
        for end in self._ends_of_parts(original, text, original.mode):
            read = self._reader.read(text[:end], original.tools, original.mode)
            if normalized(read or []) == parts:
                return text[end:]
        return None

    def _after_rendered_parts(self, original: OriginalTurn, rendered: str) -> str | None:
        """The text that the template rendered after the last part of the turn."""
        for form in self._turns.forms(original, rendered):
            rest = self._after_parts_of_form(original, form, rendered)
            if rest is not None:
                return rest
        return None

    def _after_parts_of_form(self, original: OriginalTurn, form: str, rendered: str) -> str | None:
        """The text after the last part of the turn in a form of `rendered`, which has the same
        text there."""
        turn, mode = self._reader.after_opening(form, original.opening, original.mode)
        start = len(form) - len(turn)
        for end in self._ends_of_parts(original, turn, mode):
            rest = turn[end:]
            if rendered.endswith(rest) and self._turns.is_read_as(original, form[: start + end]):
                return rest
        return None

    def _outside_control(self, text: str, offset: int) -> int:
        """The offset, or the start of the control token of the text that it would split."""
        for match in self._control_text.finditer(text[: offset + _SPARE_CHARS]):
            if match.start() < offset < match.end():
                return match.start()
        return offset

    def _ends_of_parts(self, original: OriginalTurn, text: str, mode: ParseMode) -> Iterator[int]:
        """Where the last part of a turn may end in a text that begins with it; a call before its
        wrapper's end."""
        calls, texts = _calls_and_texts_after(original.output.parts)
        end = self._end_of_calls(text, calls, original.tools, mode)
        if end is None:
            return iter(())
        return islice(_ends_of_last(texts, text, end), MAX_ENDS)

    def _end_of_calls(
        self, text: str, number: int, tools: list[ToolSpec], mode: ParseMode
    ) -> int | None:
        """Where a turn's text completes this number of calls, at its first such character, as far
        as that is near; None: it does not. A parser may report the end of a call only with what
        follows, or with the end of the turn: so the text is shortened while it has all calls."""
        if not number:
            return 0
        reported = self._reported_end_of_calls(text, number, tools, mode)
        before = text if reported is None else text[: reported - 1]
        before = before.rstrip()
        cut_off = mode._replace(closed=False)
        calls = self._reader.read(before, tools, cut_off) or []
        if _count_calls(calls) != number:
            return reported
        for _ in range(_MAX_SEPARATOR_CHARS - 1):
            shorter = before[:-1].rstrip()
            if self._reader.read(shorter, tools, cut_off) != calls:
                break
            before = shorter
        return len(before)

    def _reported_end_of_calls(
        self, text: str, number: int, tools: list[ToolSpec], mode: ParseMode
    ) -> int | None:
        """Where a parser reports the end of this number of calls, before the end of the text; None:
        it does not. The text is parsed in pieces, and the piece that completes the last call again,
        by characters."""
        starts = range(0, len(text), _PIECE_CHARS)
        pieces = [text[start : start + _PIECE_CHARS] for start in starts]
        piece = _completing(self._reader.open(tools, mode), pieces, number)
        if piece is None:
            return None
        before_piece = piece * _PIECE_CHARS
        steps = [text[:before_piece], *pieces[piece]]
        characters = _completing(self._reader.open(tools, mode), steps, number)
        assert characters is not None  # the same text completed it before
        return before_piece + characters


def _count_calls(parts: Iterable[TurnPart]) -> int:
    return sum(isinstance(part, Call) for part in parts)


def _calls_and_texts_after(parts: Iterable[TurnPart]) -> tuple[int, list[str]]:
    """The number of a turn's calls, and the texts after the last one."""
    calls = 0
    texts: list[str] = []
    for part in parts:
        if isinstance(part, Call):
            calls += 1
            texts.clear()
            continue
        text = (part.text or "").strip()
        if text:
            texts.append(text)
    return calls, texts


def _ends_of_last(texts: Sequence[str], text: str, start: int) -> Iterator[int]:
    """Where the last of `texts`, which follow each other, may end after `start`; `start` if there
    are none."""
    if not texts:
        yield start
        return
    *earlier, last = texts
    for words in earlier:
        offset = text.find(words, start)
        if offset < 0:
            return
        start = offset + len(words)
    offset = text.find(last, start)
    while offset >= 0:
        yield offset + len(last)
        offset = text.find(last, offset + 1)


def _completing(parser: TurnParser, pieces: Iterable[str], number: int) -> int | None:
    """The index of the piece that completes the call with this number, before its wrapper's end;
    None: no piece does."""
    started = 0
    for index, piece in enumerate(pieces):
        for event in parser.feed(piece):
            if isinstance(event, BlockStart) and event.kind == "tool_use":
                started += 1
            elif isinstance(event, BlockStop) and started == number:
                return index
    return None

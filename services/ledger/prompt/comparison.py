"""Compares the turns of a rendered prompt with what the model wrote: whether the prompt can have a
turn's original tokens, and up to where.

Turns are equal where they hold the same parts in the same order. White space around text and
reasoning, blank text, an empty think block and the spelling of arguments
(`keys.canonical_arguments`) make no difference. A rendered text may have data marks
(`services/tokenization/data_marks.py`): each replaces one character, so that a position is the same
with and without them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from msgspec import Struct

from schemas.conversation import Call, Text, ToolSpec
from schemas.events import BlockStart, BlockStop
from schemas.token_ids import unpack_ids
from services.families import TurnParser
from services.ledger.prompt.model import LedgerModel
from services.ledger.prompt.turn_ends import TurnEnds, pattern_of
from services.ledger.turns.keys import canonical_arguments, squeeze
from services.ledger.turns.turn import Turn, TurnPart
from services.ledger.turns.turn_reader import ParseMode, TurnReader
from services.templates.tools import arguments_of
from services.templates.wording import join_blocks
from services.tokenization.segments import TokenIds, common_prefix

_MOST_RENDERED = 8
"""Characters of a turn that a template renders, at most, for each that the model wrote: it may
escape them."""
_SPARE_CHARS = 256
"""Characters that a template renders beside those: its turn opening."""
_PIECE_CHARS = 512
_MAX_SEPARATOR_CHARS = 16
"""Limit of the characters after a call that are examined one by one, without white space."""
_MAX_ENDS = 16
"""Limit of places that are tried as the end of a turn's text: another part may quote it."""
_TEXT = "\x00text"
_REASONING = "\x00reasoning"
"""Kinds of parts, where a call has its name."""


class KeptTurn(Struct, frozen=True):
    """A turn that a rendered prompt still contains: its original tokens stand for the text up to
    `end`."""

    turn: Turn
    end: int
    """Where the prompt's text goes on."""
    joint: str = ""
    """Characters of the turn after its tokens, which are encoded with the text after `end`."""
    tokens: int = 0
    """The number of the turn's tokens in the prompt; 0: all."""

    def ids(self) -> TokenIds:
        """The turn's ids in the prompt."""
        return self.turn.ids(self.tokens)


class _Original(NamedTuple):
    """A turn as the model wrote it, and how its text is parsed."""

    text: str
    parts: list[TurnPart]
    opening: str
    """The turn opening of its prompt."""
    tools: list[ToolSpec]
    mode: ParseMode


class _Agreement(NamedTuple):
    """The characters that a turn which was cut off and its rendered text have in common."""

    written: int
    """In the text that the model wrote, with white space after them."""
    without_blanks: int
    """Leaves out white space that the template does not render."""
    rendered: int
    """In the text that the template rendered."""


class TurnComparison:
    """Compares turns of one model with rendered text. Thread-safe."""

    def __init__(self, model: LedgerModel, reader: TurnReader) -> None:
        self._encoder = model.encoder
        self._style = model.family.style
        self._model = model
        self._reader = reader
        self._ends = TurnEnds(model)

        controls = set(model.encoder.cuts.tokens)
        self._control_text = pattern_of(controls)
        hidden = controls.difference(model.family.markers)
        if self._control_text.search(model.header):
            hidden.add(model.header)
        self._hidden_text = pattern_of(hidden)
        """Tokens that a parser never receives, though templates write their text, and the header
        with its words."""

    def find(self, turn: Turn, text: str, tools: list[ToolSpec]) -> KeptTurn | None:
        """The turn in a prompt's text that begins with the turn's own prompt head; None where the
        template renders it differently."""
        output = self._reader.output_of(turn, tools)
        assert output is not None  # an entry with the same tokens was read when it was chosen
        context = turn.entry.context
        mode = ParseMode.of(turn.entry)
        original = _Original(output.text, output.parts, context.opening, tools, mode)
        if not turn.entry.closed:
            return self._find_cut(turn, original, text)

        start = context.head_chars
        least_chars = _longest_text(original.parts)
        for end in self._ends.of(text, start, output):
            if end - start >= least_chars and self._is_rendered(original, text[start:end]):
                return KeptTurn(turn, end)
        return None

    def _find_cut(self, turn: Turn, original: _Original, text: str) -> KeptTurn | None:
        """Finds a turn that was cut off: up to where the template's text is the turn's."""
        entry = turn.entry
        rendered = self._ends.without_header(self._encoder.plain(text[entry.context.head_chars :]))
        agreement = self._agreement(original, rendered)
        if agreement is None:
            return None
        if self._ends.has_foreign_end(rendered[: agreement.rendered], original.text):
            return None

        start = len(text) - len(rendered)
        end = start + agreement.rendered
        if agreement.written == len(original.text):
            return KeptTurn(turn, end, entry.tail)
        ids = unpack_ids(entry.ids)
        tokens, chars = self._reader.tokens_within(ids, agreement.written)
        joint = original.text[chars : agreement.without_blanks]
        if not tokens:
            return None
        return KeptTurn(turn, end, joint, tokens)

    def _is_rendered(self, original: _Original, stretch: str) -> bool:
        """Whether a stretch of the prompt's text is the whole turn, with or without the control
        tokens that a parser never receives. It begins where the prompt's turn opening began."""
        stretch = self._ends.without_header(self._encoder.plain(stretch))
        if self._ends.has_foreign_end(stretch, original.text):
            return False
        return any(self._is_read_as(original, form) for form in self._forms(original, stretch))

    def _agreement(self, original: _Original, rendered: str) -> _Agreement | None:
        """Up to where a turn that was cut off agrees with the text that the template renders for
        it. None where the template renders another turn.

        `rendered` begins where the prompt's turn opening began, and may go on after the turn. After
        the last part, which a template closes, the turn may lack text, or have what no template
        writes: a separator, the beginning of a call.
        """
        rendered = rendered[: _MOST_RENDERED * len(original.text) + _SPARE_CHARS]
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
        return _Agreement(
            written=len(original.text) - len(not_rendered.lstrip()),
            without_blanks=len(original.text) - len(not_rendered),
            rendered=len(rendered) - len(not_written),
        )

    def _after_written_parts(self, original: _Original) -> str | None:
        """The text that the model wrote after the last part of its turn."""
        parts = _essence(original.parts)
        for end in self._ends_of_parts(original, original.text, original.mode):
            written = original.text[:end]
            read = self._reader.read(written, original.tools, original.mode)
            if _essence(read or []) == parts:
                return original.text[end:]
        return None

    def _after_rendered_parts(self, original: _Original, rendered: str) -> str | None:
        """The text that the template rendered after the last part of the turn."""
        for form in self._forms(original, rendered):
            rest = self._after_parts_of_form(original, form, rendered)
            if rest is not None:
                return rest
        return None

    def _after_parts_of_form(self, original: _Original, form: str, rendered: str) -> str | None:
        """The text after the last part of the turn in a form of `rendered`, which has the same
        text there."""
        turn, mode = self._reader.after_opening(form, original.opening, original.mode)
        start = len(form) - len(turn)
        for end in self._ends_of_parts(original, turn, mode):
            rest = turn[end:]
            if rendered.endswith(rest) and self._is_read_as(original, form[: start + end]):
                return rest
        return None

    def _outside_control(self, text: str, offset: int) -> int:
        """The offset, or the start of the control token of the text that it would split."""
        for match in self._control_text.finditer(text[: offset + _SPARE_CHARS]):
            if match.start() < offset < match.end():
                return match.start()
        return offset

    def _forms(self, original: _Original, stretch: str) -> Iterator[str]:
        """Texts that a parser may read as the stretch: as the template renders it, and with the
        turn's calls in the family's own spelling."""
        yield stretch
        readable = self._with_readable_calls(original, stretch)
        if readable:
            yield readable

    def _with_readable_calls(self, original: _Original, stretch: str) -> str:
        """The stretch with the turn's calls in the family's own spelling, where the template writes
        them in another: some print strings unescaped (LFM2.5), so that no parser reads the value
        back. Empty where the stretch lacks the template's spelling.
        """
        written = ""
        end = 0
        for is_call, run in groupby(original.parts, _is_call):
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

    def _is_read_as(self, original: _Original, stretch: str) -> bool:
        """Whether a parser reads the turn in a stretch, or in the stretch without the tokens that
        it never receives."""
        if self._parses_to(original, stretch):
            return True
        hidden = self._hidden_text
        if hidden.search(stretch) is None:
            return False
        opening = hidden.sub("", original.opening)
        return self._parses_to(original._replace(opening=opening), hidden.sub("", stretch))

    def _parses_to(self, original: _Original, stretch: str) -> bool:
        text, mode = self._reader.after_opening(stretch, original.opening, original.mode)
        if text == original.text and mode == original.mode:
            return True  # the parts are those that a parser read in this text
        parts = self._reader.read(text, original.tools, mode)
        return parts is not None and same_parts(original.parts, parts)

    def _ends_of_parts(self, original: _Original, text: str, mode: ParseMode) -> Iterator[int]:
        """Where the last part of a turn may end in a text that begins with it; a call before its
        wrapper's end."""
        calls, texts = _calls_and_texts_after(original.parts)
        end = self._end_of_calls(text, calls, original.tools, mode)
        if end is None:
            return
        for words in texts:
            offset = text.find(words, end)
            if offset < 0:
                return
            end = offset + len(words)
        yield end

        if not texts:
            return
        last_words = texts[-1]
        for _ in range(_MAX_ENDS - 1):
            offset = text.find(last_words, end - len(last_words) + 1)
            if offset < 0:
                return
            end = offset + len(last_words)
            yield end

    def _end_of_calls(
        self, text: str, number: int, tools: list[ToolSpec], mode: ParseMode
    ) -> int | None:
        """Where a turn's text completes this number of calls, at its first such character, as far
        as that is near; None: it does not. A parser may report the end of a call only with what
        follows, or with the end of the turn."""
        if not number:
            return 0
        end = self._read_end_of_calls(text, number, tools, mode)
        cut_off = mode._replace(closed=False)
        shorter = text if end is None else text[: end - 1]
        calls: list[TurnPart] | None = None
        for _ in range(_MAX_SEPARATOR_CHARS):
            shorter = shorter.rstrip()
            parts = self._reader.read(shorter, tools, cut_off) or []
            if calls is None and sum(map(_is_call, parts)) == number:
                calls = parts
            if not calls or parts != calls:
                break
            end = len(shorter)
            shorter = shorter[:-1]
        return end

    def _read_end_of_calls(
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


def same_parts(original: Sequence[TurnPart], rendered: Sequence[TurnPart]) -> bool:
    """Whether a template renders the parts of a turn, in their order.

    Text before a call may be rendered as reasoning, or as the end of it: templates that have no
    place for text beside a call do so (gpt-oss), though the model may write both.
    """
    essence = _essence(original)
    rendered_essence = _essence(rendered)
    if essence == rendered_essence:
        return True
    squeezed = [(kind, squeeze(text)) for kind, text in rendered_essence]
    return _text_as_reasoning(essence) == squeezed


def _essence(parts: Sequence[TurnPart]) -> list[tuple[str, str]]:
    """The kinds and texts of parts, without what makes no difference."""
    essence: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, Call):
            essence.append((part.name, canonical_arguments(part.arguments)))
            continue
        text = (part.text or "").strip()
        if not text:
            continue
        kind = _TEXT if isinstance(part, Text) else _REASONING
        if kind == _TEXT and essence and essence[-1][0] == _TEXT:
            # One text where it is rendered: the model wrote a closer between them that closes
            # nothing, which no block has.
            text = join_blocks((essence.pop()[1], text))
        essence.append((kind, text))
    return essence


def _text_as_reasoning(essence: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The parts with text before a call as reasoning, and without white space."""
    changed: list[tuple[str, str]] = []
    next_kinds = [kind for kind, _ in essence[1:]]
    next_kinds.append(_TEXT)  # no call follows the last part
    for (kind, text), next_kind in zip(essence, next_kinds, strict=False):
        is_before_call = next_kind not in (_TEXT, _REASONING)
        is_reasoning = kind == _REASONING or (kind == _TEXT and is_before_call)
        if not is_reasoning:
            changed.append((kind, squeeze(text)))
            continue
        thought = squeeze(text)
        if changed and changed[-1][0] == _REASONING:
            thought = changed.pop()[1] + thought
        changed.append((_REASONING, thought))
    return changed


def _is_call(part: TurnPart) -> bool:
    return isinstance(part, Call)


def _longest_text(parts: Iterable[TurnPart]) -> int:
    """The characters of the longest text or thought of a turn, without white space around it."""
    texts = [part.text or "" for part in parts if not isinstance(part, Call)]
    return max((len(text.strip()) for text in texts), default=0)


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

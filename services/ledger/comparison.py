"""Compares turns: what a turn's original tokens parse to, what its client sent back, and what the
template renders.

Turns are equal where they hold the same parts in the same order. White space around text and
reasoning, blank text, an empty think block and the spelling of arguments
(`keys.canonical_arguments`) make no difference.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from schemas.conversation import Call, Part, Reasoning, Text, ToolSpec, Unseal
from schemas.events import BlockStart, BlockStop, FinishReason, blocks_of
from schemas.ledger import LedgerEntry
from services.families import Family, TurnParser, open_parser
from services.ledger.keys import canonical_arguments, changes_directory, squeeze
from services.ledger.store import OriginalTurn
from services.templates.tools import arguments_of
from services.tokenization.detokenizer import Vocabulary, tokens_within
from services.tokenization.segments import alternatives, common_prefix

TurnPart: TypeAlias = Text | Reasoning | Call
WriteCalls: TypeAlias = Callable[[Sequence[Call]], str]
"""Writes calls that follow each other as the template does; "" where it refuses them."""
_OPENING_CHARS = 256
_MOST_RENDERED = 8
"""Characters of a turn that a template renders, at most, for each that the model wrote: it may
escape them."""
_PIECE_CHARS = 512
_MAX_ENDS = 16
"""Limit of places that are tried as the end of a turn's text: another part may quote it."""
_TEXT, _REASONING = "\x00text", "\x00reasoning"
"""Kinds of parts, where a call has its name."""
_JOINS = ("", "\n", "\n\n", " ")
"""Separators with which APIs and clients join all text, or all reasoning, of a turn into one field."""


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
    """Parses turns as the parser stage does. Thread-safe."""

    def __init__(
        self,
        family: Family,
        vocabulary: Vocabulary,
        controls: Iterable[str] = (),
        write_calls: WriteCalls | None = None,
        header: str = "",
    ) -> None:
        """`controls`: the texts of the tokenizer's special tokens. `write_calls`: how the template
        writes calls. `header`: its text before a turn of the model."""
        controls = sorted(controls)
        self._control_text = re.compile(alternatives(controls)) if controls else None
        hidden = {text for text in controls if text not in family.markers}
        if self._control_text is not None and self._control_text.search(header):
            hidden.add(header)
        self._hidden_text = re.compile(alternatives(sorted(hidden))) if hidden else None
        """Tokens that a parser never receives, though templates write their text, and the header
        with its words."""
        self._family = family
        self._write_calls = write_calls
        self._vocabulary = vocabulary
        self._hidden = vocabulary.hidden(family.markers)
        self._opening = self._empty_thought = None
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
        found = self._opening.search(prompt[start:end]) if self._opening is not None else None
        return start + found.start() if found else end

    def text_of(self, ids: Iterable[int]) -> str:
        """The text that a parser receives for these tokens."""
        decoder = self._vocabulary.open(self._hidden)
        return decoder.feed(list(ids)) + decoder.flush()

    def read(self, text: str, tools: list[ToolSpec], mode: ParseMode) -> list[TurnPart] | None:
        """The parts of a turn with this text, up to an incomplete call; None if the turn was not
        cut off there."""
        parser = self._open(tools, mode)
        parts: list[TurnPart] = []
        reason = FinishReason.STOP if mode.closed else FinishReason.LENGTH
        for start, written, stop in blocks_of([*parser.feed(text), *parser.finish(reason)]):
            if start.kind == "tool_use" and (stop is None or not stop.complete):
                return None if mode.closed else parts
            parts.append(_part(start, written))
        return parts

    def is_kept(
        self, turn: OriginalTurn, stretch: str, opening: str, tools: list[ToolSpec], mode: ParseMode
    ) -> bool:
        """Whether the stretch of text that a template renders for a turn parses to that turn, with
        or without the control tokens that a parser never receives. The stretch begins where the
        prompt's turn opening began."""
        if self._is_read_as(turn, stretch, opening, tools, mode):
            return True
        readable = self._with_readable_calls(turn, stretch)
        return readable is not None and self._is_read_as(turn, readable, opening, tools, mode)

    def agreement(
        self, turn: OriginalTurn, text: str, opening: str, tools: list[ToolSpec], mode: ParseMode
    ) -> tuple[int, int] | None:
        """Up to where a turn that was cut off agrees with the text that the template renders for
        it: characters of the turn and of the text. None where the template renders another turn.

        `text` begins where the prompt's turn opening began, and may go on after the turn. After the
        last part, which a template closes, the turn may lack text, or have what no template writes:
        a separator, the beginning of a call.
        """
        text, parts = text[: _MOST_RENDERED * len(turn.text) + _OPENING_CHARS], _essence(turn.parts)
        own_ends = self._ends_of_parts(turn, turn.text, tools, mode)
        own = next(
            (
                at
                for at in own_ends
                if _essence(self.read(turn.text[:at], tools, mode) or []) == parts
            ),
            None,
        )
        if own is None:
            return None
        for form in filter(None, (text, self._with_readable_calls(turn, text))):
            after, rendered_mode = self._after_opening(form, opening, mode)
            for at in self._ends_of_parts(turn, after, tools, rendered_mode):
                start = len(form) - len(after)
                if text.endswith(after[at:]) and self._is_read_as(
                    turn, form[: start + at], opening, tools, mode
                ):
                    written, rendered = turn.text[own:], after[at:]
                    same = self._outside_control(rendered, len(common_prefix(written, rendered)))
                    return len(turn.text) - len(written[same:].lstrip()), len(text) - len(
                        rendered
                    ) + same
        return None

    def _outside_control(self, text: str, at: int) -> int:
        """The position, or the start of the control token of the text that it would split."""
        found = (
            self._control_text.finditer(text[: at + _OPENING_CHARS])
            if self._control_text is not None
            else ()
        )
        return next((match.start() for match in found if match.start() < at < match.end()), at)

    def tokens_within(self, ids: Iterable[int], chars: int) -> tuple[int, int]:
        """How many tokens end within the first characters of a turn's text, and how many characters
        they have."""
        decoder = self._vocabulary.open(self._hidden)
        lengths = [*accumulate(map(len, map(decoder.step, ids)), initial=0)]
        count = tokens_within(lengths, chars)
        return count, lengths[count]

    def _with_readable_calls(self, turn: OriginalTurn, stretch: str) -> str | None:
        """The stretch with the turn's calls in the family's own spelling, where the template writes
        them in another: some print strings unescaped (LFM2.5), so that no parser reads the value
        back. None where the stretch lacks the template's spelling.
        """
        if self._write_calls is None:
            return None
        written, at = "", 0
        for is_call, parts in groupby(turn.parts, lambda part: isinstance(part, Call)):
            if not is_call:
                continue
            calls = [part for part in parts if isinstance(part, Call)]
            shown = self._write_calls(calls)
            found = stretch.find(shown, at) if shown else -1
            if found < 0:
                return None
            own = [self._family.style.write_call(call.name, arguments_of(call)) for call in calls]
            written += stretch[at:found] + self._family.style.joint.join(own)
            at = found + len(shown)
        return written + stretch[at:] if at else None

    def _open(self, tools: list[ToolSpec], mode: ParseMode) -> TurnParser:
        in_reasoning, prefix, as_text, _ = mode
        return open_parser(
            self._family.name,
            tools=tools,
            in_reasoning=in_reasoning,
            prefix=prefix,
            calls_as_text=as_text,
        )

    def _is_read_as(
        self, turn: OriginalTurn, stretch: str, opening: str, tools: list[ToolSpec], mode: ParseMode
    ) -> bool:
        if self._parses_to(turn, stretch, opening, tools, mode):
            return True
        hidden = self._hidden_text
        if hidden is None or hidden.search(stretch) is None:
            return False
        return self._parses_to(turn, hidden.sub("", stretch), hidden.sub("", opening), tools, mode)

    def _parses_to(
        self, turn: OriginalTurn, stretch: str, opening: str, tools: list[ToolSpec], mode: ParseMode
    ) -> bool:
        text, mode = self._after_opening(stretch, opening, mode)
        rendered = self.read(text, tools, mode)
        return rendered is not None and same(turn.parts, rendered)

    def _after_opening(self, stretch: str, opening: str, mode: ParseMode) -> tuple[str, ParseMode]:
        """The stretch after the turn opening, and its mode. The template may write another opening:
        reasoning open, closed at once, or without markers."""
        if stretch.startswith(opening):
            return stretch[len(opening) :], mode._replace(closed=True)
        if self._empty_thought is not None:
            stretch = self._empty_thought.sub("", stretch, count=1)
        return stretch, ParseMode(False, "", mode.calls_as_text)

    def _ends_of_parts(
        self, turn: OriginalTurn, text: str, tools: list[ToolSpec], mode: ParseMode
    ) -> Iterator[int]:
        """Where the last part of a turn may end in a text that begins with it; a call before its
        wrapper's end."""
        parts = [part for part in turn.parts if isinstance(part, Call) or (part.text or "").strip()]
        calls, at, wanted = sum(isinstance(part, Call) for part in parts), 0, ""
        if calls:
            pieces = [
                text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)
            ]
            start = _PIECE_CHARS * _completing(self._open(tools, mode), pieces, calls)
            if start < 0:
                return
            characters = text[start : start + _PIECE_CHARS]
            at = start + _completing(self._open(tools, mode), [text[:start], *characters], calls)
        for part in parts:
            calls -= isinstance(part, Call)
            if not calls and not isinstance(part, Call):  # after the last call
                wanted = (part.text or "").strip()
                if (found := text.find(wanted, at)) < 0:
                    return
                at = found + len(wanted)
        for _ in range(_MAX_ENDS if wanted else 1):
            yield at
            at = text.find(wanted, at - len(wanted) + 1) + len(wanted)
            if at < len(wanted):
                return


def same(original: Sequence[TurnPart], rendered: Sequence[TurnPart]) -> bool:
    """Whether a template renders the parts of a turn, in their order.

    Text before a call may be rendered as reasoning, or as the end of it: templates that have no
    place for text beside a call do so (gpt-oss), though the model may write both.
    """
    ours, theirs = _essence(original), _essence(rendered)
    return ours == theirs or _text_as_reasoning(ours) == [
        (kind, squeeze(text)) for kind, text in theirs
    ]


def restored_parts(
    sent: Sequence[Part], turn: OriginalTurn, unseal: Unseal | None, *, with_reasoning: bool
) -> list[Part] | None:
    """The original turn's parts, if the client sent back that turn; None where the client changed
    it.

    Ids, names and kinds of calls are the client's, since its results refer to them; templates show
    the model's own ids. Reasoning that it left out, or sent in parts only, is restored with
    `with_reasoning` and else left out. The key guarantees that calls are equal, and texts nearly
    so.
    """
    texts = [part.text for part in sent if isinstance(part, Text)]
    if not _joined(texts) & _joined([part.text for part in turn.parts if isinstance(part, Text)]):
        return None
    thoughts = [_thought(part, unseal) for part in sent if isinstance(part, Reasoning)]
    thoughts = [thought for thought in thoughts if thought.strip()]
    original = [part.text or "" for part in turn.parts if isinstance(part, Reasoning)]
    if thoughts and not _is_reasoning_of(thoughts, original):
        return None
    calls = iter([part for part in sent if isinstance(part, Call)])
    parts: list[Part] = []
    for part in turn.parts:
        if isinstance(part, Call):
            call = next(calls, None)
            if call is None or changes_directory(part.arguments, call.arguments):
                return None
            arguments = call.arguments if call.kind == "custom" else part.arguments
            parts.append(replace(call, arguments=arguments, original_id=part.original_id))
        elif isinstance(part, Text) or thoughts or with_reasoning:
            parts.append(part)
    return parts


def _thought(part: Reasoning, unseal: Unseal | None) -> str:
    return part.text or (unseal(part.seal) if unseal is not None and part.seal else None) or ""


def _is_reasoning_of(sent: Sequence[str], original: Sequence[str]) -> bool:
    """Whether the client sent the turn's reasoning: all of it, however joined, or some of its
    blocks whole."""
    ours, theirs = list(map(squeeze, original)), list(map(squeeze, sent))
    return "".join(theirs) == "".join(ours) or all(thought in ours for thought in theirs)


def _joined(texts: Sequence[str]) -> set[str]:
    """All texts that a field may have in which a client joined these."""
    kept = [text for text in texts if text.strip()]
    if len(kept) < 2:
        return {"".join(kept).strip()}
    bare = [text.strip() for text in kept]
    return {join.join(form).strip() for join in _JOINS for form in (kept, bare)}


def _part(start: BlockStart, text: str) -> TurnPart:
    if start.kind == "tool_use":
        return Call("", start.name or "", text, original_id=start.call_id)
    return Reasoning(text) if start.kind == "reasoning" else Text(text)


def _essence(parts: Sequence[TurnPart]) -> list[tuple[str, str]]:
    essence: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, Call):
            essence.append((part.name, canonical_arguments(part.arguments)))
        elif (text := (part.text or "").strip()) != "":
            essence.append((_TEXT if isinstance(part, Text) else _REASONING, text))
    return essence


def _text_as_reasoning(essence: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The parts with text before a call as reasoning, and without white space."""
    changed: list[tuple[str, str]] = []
    for index, (kind, text) in enumerate(essence):
        before_call = index + 1 < len(essence) and essence[index + 1][0] not in (_TEXT, _REASONING)
        now = _REASONING if kind == _TEXT and before_call else kind
        if now == _REASONING and changed and changed[-1][0] == _REASONING:
            changed[-1] = (_REASONING, changed[-1][1] + squeeze(text))
        else:
            changed.append((now, squeeze(text)))
    return changed


def _completing(parser: TurnParser, pieces: Iterable[str], number: int) -> int:
    """The index of the piece that completes the call with this number, before its wrapper's end;
    -1: there is none."""
    for index, piece in enumerate(pieces):
        for event in parser.feed(piece):
            if isinstance(event, BlockStart) and event.kind == "tool_use":
                number -= 1
            elif isinstance(event, BlockStop) and number == 0:
                return index
    return -1


def _marker(text: str) -> str:
    """A marker as a pattern; a tokenizer may add to its name (`<think:opensource>`)."""
    text = text.strip()
    return re.escape(text.removesuffix(">")) + r"[\w:]*>" if text.endswith(">") else re.escape(text)

"""Turns compared: what a turn's own tokens say, what its client sent back, and what the template makes of it.

All three are parts of a conversation here, and a turn is the same where all that was said is the same and in the same
order. No change are white space around text and reasoning, blank text, an empty think block, and the spelling of
arguments (`turn_keys.canonical_arguments`).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from schemas.conversation import Call, Part, Reasoning, Text, ToolSpec
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from schemas.ledger import LedgerEntry
from services.parser import Family, TurnParser, open_parser
from services.parser.detokenizer import Vocabulary
from services.parser.turn_keys import canonical_arguments, goes_elsewhere, squeeze
from services.preprocessor.ledger_store import OwnTurn
from services.preprocessor.messages import Unseal

Said = Text | Reasoning | Call
LeadOf: TypeAlias = Callable[[str, str], int]
_LEAD_CHARS = 256
_TEXT, _REASONING = "\x00text", "\x00reasoning"
"""What stands for them where a call has its name."""
_JOINS = ("", "\n", "\n\n", " ")
"""How APIs and clients with one field for all of a turn's text, or reasoning, join it."""


class Mode(NamedTuple):
    """How a turn's text is to be parsed; see `open_parser`."""

    in_reasoning: bool
    prefix: str = ""
    calls_as_text: bool = False
    closed: bool = True
    """Not cut off."""

    @classmethod
    def of(cls, entry: LedgerEntry) -> "Mode":
        """As the parser read the turn."""
        return cls(entry.in_reasoning, entry.prefix, entry.calls_as_text, entry.closed)


def lead_of(family: Family) -> LeadOf:
    """Tells where the marks begin, at a prompt's end and before a forced call's opening, with which it opens the turn's
    reasoning, opens and closes it, or only closes it."""
    if family.think is None:
        return lambda prompt, prefix: len(prompt) - len(prefix)
    opener, closer = map(_marker, family.think)
    marks = re.compile(rf"\s*(?:{opener}\s*(?:{closer}\s*)?|{closer}\s*)\Z")

    def lead(prompt: str, prefix: str) -> int:
        end = len(prompt) - len(prefix)
        start = max(end - _LEAD_CHARS, 0)
        found = marks.search(prompt[start:end])
        return start + found.start() if found else end

    return lead


class TurnReader:
    """Reads turns as the parser does. Thread-safe."""

    def __init__(self, family: Family, vocabulary: Vocabulary, controls: Iterable[str] = ()) -> None:
        """`controls`: the texts of the tokenizer's special tokens."""
        unseen = sorted(set(controls) - set(family.markers), key=len, reverse=True)
        self._unseen = re.compile("|".join(map(re.escape, unseen))) if unseen else None
        """Tokens that a parser is not shown, though a template writes their text."""
        self._family = family
        self._vocabulary = vocabulary
        self._hidden = vocabulary.hidden(family.markers)
        self.lead = lead_of(family)
        self._empty_thought = _empty_thought_pattern(family)

    def text_of(self, ids: Iterable[int]) -> str:
        """The text that a parser gets of these tokens."""
        decoder = self._vocabulary.open(self._hidden)
        return decoder.feed(list(ids)) + decoder.flush()

    def read(self, text: str, tools: list[ToolSpec], mode: Mode) -> list[Said] | None:
        """What a turn of this text says; None where one of its calls is cut off."""
        parser = self._open(tools, mode)
        said: list[Said] = []
        start, pieces = BlockStart(0, "text"), list[str]()
        reason = FinishReason.STOP if mode.closed else FinishReason.LENGTH
        for event in [*parser.feed(text), *parser.finish(reason)]:
            if isinstance(event, BlockStart):
                start, pieces = event, []
            elif isinstance(event, Delta):
                pieces.append(event.text)
            elif not event.complete and start.kind == "tool_use":
                return None
            else:
                said.append(_part(start, "".join(pieces)))
        return said

    def shown(self, stretch: str, lead: str, tools: list[ToolSpec], mode: Mode) -> list[Said] | None:
        """As `read`, of the stretch that a template gives to a turn, from where the prompt's `lead` began. The template
        may write that in its other form: reasoning open, closed at once, or not marked at all."""
        return self.read(*self._behind_lead(stretch, lead, tools, mode))

    def keeps(self, own: OwnTurn, stretch: str, lead: str, tools: list[ToolSpec], mode: Mode) -> bool:
        """Whether the stretch says what the turn said, read as it stands or as a parser gets it: without the control
        tokens that are not shown to it."""
        shown = self.shown(stretch, lead, tools, mode)
        if shown is not None and same(own.parts, shown):
            return True
        if self._unseen is None or self._unseen.search(stretch) is None:
            return False
        shown = self.shown(self._unseen.sub("", stretch), self._unseen.sub("", lead), tools, mode)
        return shown is not None and same(own.parts, shown)

    def lacks(self, own: OwnTurn, stretch: str, lead: str, tools: list[ToolSpec], mode: Mode) -> str | None:
        """What a turn that was cut off lacks to be closed, as the template writes it in the stretch that it gives to
        the turn; None where that cannot be told."""
        last = own.parts[-1]
        if isinstance(last, Call):
            calls = sum(isinstance(part, Call) for part in own.parts)
            shown = self._behind_lead(stretch, lead, tools, mode)
            closed, ended = self._closed_at(calls, *shown), self._closed_at(calls, own.text, tools, mode)
            if closed is None or ended is None:
                return None
            lacks, written = shown[0][closed:], own.text[ended:]
        else:
            said = (last.text or "").strip()
            if said not in stretch:
                return None
            lacks = stretch[stretch.rindex(said) + len(said) :]
            written = own.text[len(own.text.rstrip()) :]
        bare = written.rstrip()
        if not lacks.startswith(bare):
            return None
        rest, blanks = lacks[len(bare) :], written[len(bare) :]
        while not rest.startswith(blanks):
            blanks = blanks[:-1]
        return rest[len(blanks) :]

    def _open(self, tools: list[ToolSpec], mode: Mode) -> TurnParser:
        in_reasoning, prefix, as_text, _ = mode
        return open_parser(
            self._family.name, tools=tools, in_reasoning=in_reasoning, prefix=prefix, calls_as_text=as_text
        )

    def _behind_lead(
        self, stretch: str, lead: str, tools: list[ToolSpec], mode: Mode
    ) -> tuple[str, list[ToolSpec], Mode]:
        if stretch.startswith(lead):
            return stretch[len(lead) :], tools, mode._replace(closed=True)
        if self._empty_thought is not None:
            stretch = self._empty_thought.sub("", stretch, count=1)
        return stretch, tools, Mode(False, "", mode.calls_as_text)

    def _closed_at(self, calls: int, text: str, tools: list[ToolSpec], mode: Mode) -> int | None:
        """Where the last of so many calls is complete, before what closes its wrapper."""
        parser = self._open(tools, mode)
        for at, character in enumerate(text):
            for event in parser.feed(character):
                if isinstance(event, BlockStart) and event.kind == "tool_use":
                    calls -= 1
                elif isinstance(event, BlockStop) and calls == 0:
                    return at + 1
        return None


def same(own: Sequence[Said], shown: Sequence[Said]) -> bool:
    """Whether what a template shows is what was said, in the order in which it was said.

    Also where text before a call is shown as reasoning, or as the end of it: templates that have no place for text
    beside a call do so (gpt-oss), though the model may write both.
    """
    said, seen = _essence(own), _essence(shown)
    return said == seen or _all_thought(said) == [(kind, squeeze(text)) for kind, text in seen]


def recalled(sent: Sequence[Part], own: OwnTurn, unseal: Unseal | None, *, restore: bool) -> list[Part] | None:
    """The turn as it was said, if what the client sent back is that turn; else None.

    Ids, names and kinds of calls are the client's, since its results refer to them. Reasoning that it did not send, or
    only in parts, is put back if `restore`; else it is left out. That calls are equal, and texts nearly so, is known by
    the key. None where the client changed what was thought or said.
    """
    texts = [part.text for part in sent if isinstance(part, Text)]
    if not _joined(texts) & _joined([part.text for part in own.parts if isinstance(part, Text)]):
        return None
    thoughts = [_thought(part, unseal) for part in sent if isinstance(part, Reasoning)]
    thoughts = [thought for thought in thoughts if thought.strip()]
    mine = [part.text or "" for part in own.parts if isinstance(part, Reasoning)]
    if thoughts and not _carried(thoughts, mine):
        return None
    calls = iter([part for part in sent if isinstance(part, Call)])
    parts: list[Part] = []
    for part in own.parts:
        if isinstance(part, Call):
            call = next(calls, None)
            if call is None or goes_elsewhere(part.arguments, call.arguments):
                return None
            parts.append(call if call.kind == "custom" else _spelled(call, part.arguments))
        elif isinstance(part, Text) or thoughts or restore:
            parts.append(part)
    return parts


def _spelled(call: Call, arguments: str) -> Call:
    return Call(call.call_id, call.name, arguments, call.kind, call.namespace, call.item_id)


def _thought(part: Reasoning, unseal: Unseal | None) -> str:
    return part.text or (unseal(part.seal) if unseal is not None and part.seal else None) or ""


def _carried(sent: Sequence[str], own: Sequence[str]) -> bool:
    """Whether what was sent is the turn's own reasoning: all of it, however joined, or some of its thoughts whole."""
    if [thought.strip() for thought in sent] == [thought.strip() for thought in own]:
        return True
    mine = [squeeze(thought) for thought in own]
    theirs = [squeeze(thought) for thought in sent]
    return "".join(theirs) == "".join(mine) or all(thought in mine for thought in theirs)


def _joined(texts: Sequence[str]) -> set[str]:
    """All that the texts may have become on the way through one field."""
    shown = [text for text in texts if text.strip()]
    if len(shown) < 2:
        return {"".join(shown).strip()}
    bare = [text.strip() for text in shown]
    return {join.join(form).strip() for join in _JOINS for form in (shown, bare)}


def _part(start: BlockStart, text: str) -> Said:
    if start.kind == "tool_use":
        return Call("", start.name or "", text)
    return Reasoning(text) if start.kind == "reasoning" else Text(text)


def _essence(parts: Sequence[Said]) -> list[tuple[str, str]]:
    essence: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, Call):
            essence.append((part.name, canonical_arguments(part.arguments)))
        elif (said := (part.text or "").strip()) != "":
            essence.append((_TEXT if isinstance(part, Text) else _REASONING, said))
    return essence


def _all_thought(essence: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """As if text before a call were reasoning; without white space."""
    told: list[tuple[str, str]] = []
    for index, (kind, said) in enumerate(essence):
        called = index + 1 < len(essence) and essence[index + 1][0] not in (_TEXT, _REASONING)
        now = _REASONING if kind == _TEXT and called else kind
        if now == _REASONING and told and told[-1][0] == _REASONING:
            told[-1] = (_REASONING, told[-1][1] + squeeze(said))
        else:
            told.append((now, squeeze(said)))
    return told


def _marker(text: str) -> str:
    """A marker as a pattern; a tokenizer may add to its name (`<think:opensource>`)."""
    text = text.strip()
    return re.escape(text.removesuffix(">")) + r"[\w:]*>" if text.endswith(">") else re.escape(text)


def _empty_thought_pattern(family: Family) -> "re.Pattern[str] | None":
    """An empty think block at the start of a turn."""
    if family.think is None:
        return None
    opener, closer = map(_marker, family.think)
    return re.compile(rf"\A\s*(?:{opener}\s*)?{closer}\s*")

"""The turn ledger: the tokens of turn N come back unchanged as the prefix of turn N+1. `docs/ledger.md` tells all.

A `Recall` is one request's look into the ledger. It is used in two steps, around the rendering:

- `restore` puts the turns of the history back as they were said, where the client sent them back as such;
- `encode` finds the newest turn that the rendered text still shows behind the very text it was decoded behind, and
  gives that prompt's ids, the turn's own, and the ids of the text that follows.

Nothing is assumed: the text before a turn is compared by hash, and what the template makes of the turn is parsed and
compared with what its tokens say. Where that fails, the text is encoded as the template wants it, from there on.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Part, ToolSpec, Turn
from schemas.frames import unpack_ids
from schemas.ledger import LedgerEntry, LedgerSeat
from services.parser import Family
from services.parser.detokenizer import Vocabulary
from services.parser.turn_keys import DIGEST_BYTES, add, chain, squeeze, turn_key
from services.preprocessor.chain_memo import ChainMemo
from services.preprocessor.encoding import Encoder, Stable
from services.preprocessor.ledger_chain import Chain, Link, scope_of, spoken
from services.preprocessor.ledger_store import EntryStore, Held, OwnTurn, PromptCache, Told
from services.preprocessor.ledger_turns import Mode, TurnReader, recalled
from services.preprocessor.messages import Unseal
from services.preprocessor.segments import TokenIds

MAX_ENDS = 16
"""Places at which a turn's stretch may end that are tried: only a turn that quotes end tokens has more than one."""

Outcome: TypeAlias = Literal["first", "reused", "unknown", "client", "moved", "template"]
"""Of the newest turn: there is none; its tokens are in the prompt; it is not in the ledger; its client sent back
something else; the text before it is another; the template shows something else."""


class LedgerModel(Struct, frozen=True):
    """What the ledger knows of its model."""

    name: str
    digest: bytes
    """Of template, tokenizer and family: entries made with others are never found."""
    family: Family
    encoder: Encoder
    vocabulary: Vocabulary
    ends: tuple[str, ...]
    """Texts of the tokens that end a turn."""
    header: str = ""
    """What stands before a turn of the model, reasoning not counted and without white space around it."""


class Found(Struct, frozen=True):
    """What `Recall.encode` came to."""

    ids: TokenIds
    outcome: Outcome
    reused: int
    """Tokens that were not encoded: the known prompt's and the turns' own."""
    seat: LedgerSeat | None
    """For the turn that follows; None where it cannot be found again."""


class _Base(Struct, frozen=True):
    """The known part of a prompt: the prompt of `held`, its turn, and where the text goes on."""

    held: Held
    end: int
    joint: str


class Ledger:
    """One model's ledger in one process. Thread-safe."""

    def __init__(self, model: LedgerModel, *, entry_bytes: int, prompt_bytes: int) -> None:
        """`entry_bytes` and `prompt_bytes` bound what is kept of turns and of whole prompts."""
        self.model = model
        self.entries = EntryStore(entry_bytes)
        self.prompts = PromptCache(prompt_bytes)
        self._chains = ChainMemo(prompt_bytes)
        self.reader = TurnReader(model.family, model.vocabulary, model.encoder.cuts.tokens)
        self._end = (
            re.compile("|".join(map(re.escape, sorted(model.ends, key=len, reverse=True)))) if model.ends else None
        )
        joint = model.family.style.joint
        opens = (joint, model.header) if joint else (model.header, *model.family.markers)
        self._goes_on = tuple(text for text in opens if text and text not in model.ends)
        self._guard = _guard(model.encoder)

    def add(self, entry: LedgerEntry) -> bool:
        """Takes an entry whose signature is good. False: it is known, or another model's."""
        return entry.model == self.model.name and self.entries.add(entry)

    def recall(self, conversation: Conversation, tools: list[ToolSpec], unseal: Unseal | None = None) -> "Recall":
        """A look into the ledger for a request. `conversation` has no preamble; `tools` are as the model is told."""
        scope = scope_of(self.model.name, self.model.digest, conversation.client.tenant)
        return Recall(self, conversation, self._chains.chain_of(conversation, scope), tools, unseal)

    def said(self, entry: LedgerEntry, tools: list[ToolSpec]) -> list[Part] | None:
        """What the entry's turn says; None where its tokens cannot be read."""
        try:
            text = self.reader.text_of(unpack_ids(entry.ids)) + entry.tail
        except (ValueError, IndexError, OverflowError, TypeError):
            return None
        parts = self.reader.read(text, tools, Mode.of(entry))
        return None if parts is None else [*parts]

    def fragment(self, text: str) -> TokenIds:
        """The ids of text that stands behind something: its start is not the start of a text, for tokenizers that make
        a difference."""
        encoder = self.model.encoder
        if not text or self._guard is None or text.startswith(encoder.cuts.tokens):
            return encoder.encode(text)
        return encoder.encode(self._guard + text)[1:]

    def ends(self, text: str, start: int) -> Iterable[int]:
        """Where a turn that begins at `start` may end."""
        if self._end is None:
            return
        for count, match in enumerate(self._end.finditer(text, start)):
            if count == MAX_ENDS:
                return
            yield match.start()

    def closings(self, text: str, start: int, own: str) -> Iterable[int]:
        """Where a turn that begins at `start` may end for a template that writes no end of turn (Apertus, before a
        result): behind the marker with which the turn itself ends."""
        said = own.rstrip()
        marker = next((marker for marker in self.model.family.markers if said.endswith(marker)), None)
        at = start
        for _ in range(MAX_ENDS if marker else 0):
            at = text.find(marker or "", at)
            if at < 0:
                return
            at += len(marker or "")
            yield at

    def strays(self, stretch: str, own: str) -> bool:
        """Whether a stretch holds an end token that is neither quoted in the turn itself nor followed by more of the
        model's: what a parser passes over between messages may be somebody else's."""
        if self._end is None:
            return False
        quoted = Counter(self._end.findall(own))
        for match in self._end.finditer(stretch):
            if not stretch[match.end() :].lstrip().startswith(self._goes_on):
                quoted[match[0]] -= 1
                if quoted[match[0]] < 0:
                    return True
        return False

    def bare(self, stretch: str) -> str:
        """A stretch without the header of the model's messages. It has one where a template writes none when the model
        is to go on behind a result, but one when all is history (some Gemma 4)."""
        header, rest = self.model.header, stretch.lstrip()
        return rest[len(header) :] if header and rest.startswith(header) else stretch


class Recall:
    """One request's look into the ledger."""

    def __init__(
        self, ledger: Ledger, conversation: Conversation, links: Chain, tools: list[ToolSpec], unseal: Unseal | None
    ) -> None:
        self._ledger = ledger
        self._conversation = conversation
        self._chain = links
        self._tools = tools
        self._unseal = unseal
        self._stable: Stable | None = None
        self._chosen: list[Held | None] = [None] * len(links.links)
        open_ended = bool(links.links) and links.links[-1].end == len(conversation.turns)
        self._ended = len(links.links) - open_ended
        """How many of the model's turns have something behind them."""

    @property
    def missing(self) -> list[bytes]:
        """Keys of turns of which memory has no entry."""
        return [link.key for link in self._chain.links if not self._ledger.entries.find(link.key)]

    def restore(self) -> Conversation:
        """The conversation with its turns as they were said. A turn that the client changed stays as the client has it;
        reasoning that it dropped comes back, unless the request asks for dropping."""
        conversation, turns, at = self._conversation, list[Turn](), 0
        keeps = conversation.thinking.history != "drop"
        for index, link in enumerate(self._chain.links):
            turns += conversation.turns[at : link.first]
            turns += self._recalled(index, link, restore=keeps) or conversation.turns[link.first : link.end]
            at = link.end
        turns += conversation.turns[at:]
        return replace(conversation, turns=turns)

    def encode(self, text: str, prefix: str = "", stable: Stable | None = None, *, continues: bool = False) -> Found:
        """The ids of the prompt with this text, which `restore`'s conversation was rendered to. `prefix`: the opening
        of a forced call at its end. `stable`: see `Encoder.encode`. `continues`: it ends in the model's own last turn.
        """
        ledger, self._stable = self._ledger, stable
        base, outcome = self._base(text)
        seat = self._seat(text, ledger.reader.lead(text, prefix), base, continues=continues)
        if base is None:
            return Found(ledger.model.encoder.encode(text, stable), outcome, 0, seat)
        known = self._prompt(base.held, text, stable) + base.held.ids()
        return Found(known + ledger.fragment(base.joint + text[base.end :]), outcome, len(known), seat)

    def keep(self, found: Found) -> None:
        """Remembers the prompt, for the turn that follows."""
        if found.seat is not None:
            self._ledger.prompts.put(_prompt_key(found.seat), found.ids, instead_of=self._former(found.seat))

    # -- which turn -------------------------------------------------------------------------------------------------

    def _base(self, text: str) -> tuple[_Base | None, Outcome]:
        """The newest turn that the text still shows, and how the newest of all fared."""
        outcome: Outcome | None = None
        for index in range(self._ended - 1, -1, -1):
            base, found = self._try(index, text)
            outcome = outcome or found
            if base is not None:
                return base, outcome
        return None, outcome or "first"

    def _try(self, index: int, text: str) -> tuple[_Base | None, Outcome]:
        """The turn at `index`, or the one before that its prompt was made of."""
        ledger, key = self._ledger, self._chain.links[index].key
        chosen = self._chosen[index]
        known = [chosen] if chosen is not None else ledger.entries.find(key)
        behind = [held for held in known if self._stands_behind(held.entry.seat, text)]
        if not behind:
            return None, "moved" if known else "unknown"
        if chosen is not None and (base := self._stretch(chosen, text)) is not None:
            return base, "reused"
        seat = behind[0].entry.seat
        parent = ledger.entries.one(seat.parent_key, seat.parent) if seat.parent else None
        # The text of the parent's turn lies within what was compared, and was read when this prompt was made.
        base = None if parent is None else _Base(parent, seat.parent_end, seat.joint)
        return base, "template" if chosen is not None else "client"

    def _stretch(self, held: Held, text: str) -> _Base | None:
        """The turn with the end of its stretch, if the template keeps it."""
        entry, own, reader = held.entry, held.turn, self._ledger.reader
        assert own is not None  # `recalled` has read it
        seat, mode = entry.seat, Mode.of(entry)
        size = max((len((part.text or "").strip()) for part in own.parts if not isinstance(part, Call)), default=0)
        for end in self._ledger.ends(text, seat.front):
            if end - seat.front < size:
                continue
            stretch = self._ledger.bare(text[seat.front : end])
            if self._ledger.strays(stretch, own.text) or not reader.keeps(own, stretch, seat.lead, self._tools, mode):
                continue
            lacks = "" if entry.closed else reader.lacks(own, stretch, seat.lead, self._tools, mode)
            return None if lacks is None else _Base(held, end, entry.tail + lacks)
        for end in self._ledger.closings(text, seat.front, own.text) if entry.closed else ():
            if reader.keeps(own, self._ledger.bare(text[seat.front : end]), seat.lead, self._tools, mode):
                return _Base(held, end, entry.tail)
        return None

    def _recalled(self, index: int, link: Link, *, restore: bool) -> list[Turn] | None:
        turns = self._conversation.turns[link.first : link.end]
        sent = [part for turn in turns for part in turn.parts]
        for held in self._ledger.entries.find(link.key):
            own = self._read(held)
            if own is None:
                continue
            if held.entry.seat.said:  # the client began this turn: its text is not all the model's
                self._chosen[index] = held
                return turns
            told = held.told
            if told is None or told.restore != restore or told.unseal != self._unseal or told.sent != turns:
                parts = recalled(sent, own, self._unseal, restore=restore)
                if parts is None:
                    continue
                told = held.told = Told(turns, [Turn("assistant", parts, turns[0].name)], restore, self._unseal)
            self._chosen[index] = held
            return told.said
        return None

    def _read(self, held: Held) -> OwnTurn | None:
        """What the entry's tokens say; None where that is not what its key stands for."""
        if held.turn is None and not held.unreadable:
            entry, reader = held.entry, self._ledger.reader
            try:
                text = reader.text_of(held.ids()) + entry.tail
            except (ValueError, IndexError, OverflowError, TypeError):
                held.unreadable = True
                return None
            parts = reader.read(text, self._tools, Mode.of(entry))
            said, calls = spoken(parts or [])
            if parts and turn_key(entry.seat.state, entry.seat.said + squeeze(said), calls) == entry.key:
                held.turn = OwnTurn(text, parts)
            else:
                held.unreadable = True
        return held.turn

    # -- which ids --------------------------------------------------------------------------------------------------

    def _prompt(self, held: Held, text: str, stable: Stable | None) -> TokenIds:
        """The ids of the prompt behind which this turn was decoded, whose text stands at the front of `text`: as they
        were kept, or made anew of the turns that it was made of. Where one of those is lost, its text is encoded."""
        ledger = self._ledger
        behind: list[tuple[LedgerSeat, Held | None]] = []
        seat = held.entry.seat
        while (ids := ledger.prompts.get(_prompt_key(seat))) is None:
            parent = ledger.entries.one(seat.parent_key, seat.parent) if seat.parent else None
            behind.append((seat, parent))
            if parent is None:
                break
            seat = parent.entry.seat
        for seat, parent in reversed(behind):
            if parent is None or ids is None:
                ids = ledger.model.encoder.encode(text[: seat.front] + seat.lead, stable)
            else:
                rest = ledger.fragment(seat.joint + text[seat.parent_end : seat.front] + seat.lead)
                ids = ids + parent.ids() + rest
        assert ids is not None
        return ids

    def _seat(self, text: str, front: int, base: _Base | None, *, continues: bool) -> LedgerSeat | None:
        links, state, said = self._chain.links, self._chain.state, ""
        if self._ended < len(links):
            if not continues:
                return None  # the next turn would not be told from this one when both come back
            turns = self._conversation.turns[links[-1].first :]
            text_said, calls = spoken([part for turn in turns for part in turn.parts])
            if calls:
                return None
            state, said = links[-1].state, squeeze(text_said)
        seat = LedgerSeat(state, front, self._hash(text, front), text[front:], said)
        if base is None:
            return seat
        entry = base.held.entry
        return replace(seat, parent=entry.mac, parent_key=entry.key, parent_end=base.end, joint=base.joint)

    def _stands_behind(self, seat: LedgerSeat, text: str) -> bool:
        """Whether the text begins with that behind which the turn was decoded."""
        return 0 <= seat.front <= len(text) and self._hash(text, seat.front) == seat.front_hash

    def _hash(self, text: str, end: int) -> bytes:
        """The hash of `text[:end]`; a stable text at its front was hashed before."""
        stable = self._stable
        start = len(stable.text) if stable is not None and len(stable.text) <= end else 0
        hasher = stable.hashed() if stable is not None and start else hashlib.blake2b(digest_size=DIGEST_BYTES)
        hasher.update(text[start:end].encode("utf-8", "surrogatepass"))
        return hasher.digest()

    def _former(self, seat: LedgerSeat) -> bytes | None:
        parent = self._ledger.entries.one(seat.parent_key, seat.parent) if seat.parent else None
        return None if parent is None else _prompt_key(parent.entry.seat)


def _prompt_key(seat: LedgerSeat) -> bytes:
    """What a prompt's ids follow from."""
    hasher = chain(seat.parent)
    add(hasher, "prompt", str(seat.parent_end), seat.joint, seat.front_hash.hex(), seat.lead)
    return hasher.digest()


def _guard(encoder: Encoder) -> str | None:
    """A control token that leaves the text behind it as it is: one that does not take white space (`rstrip`)."""
    return next((token for token in encoder.cuts.tokens if len(encoder.encode(f"{token} \n{token}")) > 2), None)

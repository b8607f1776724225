"""The turn ledger: turn N's tokens become the prefix of prompt N+1, unchanged (docs/ledger.md).

A `Recall` looks up one request's turns, in two steps around the rendering:

- `restore` puts the turns of the history back as the model wrote them, if the client did not change
  them;
- `encode` finds the newest turn that the rendered text still contains, after the same text as when
  it was decoded, and returns that prompt's ids, the turn's original tokens, and the ids of the text
  that follows.

Everything is verified: the text before a turn is compared by hash, and the template's text of the
turn is parsed and compared with what its tokens parse to. From the first difference on, the
rendered text is encoded.
"""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Text, ToolSpec, Unseal
from schemas.frames import unpack_ids
from schemas.ledger import LedgerContext, LedgerEntry
from schemas.session import session_digest
from services.families import Family
from services.ledger.chain import Chain, ChainCache, scope_of, text_and_calls
from services.ledger.choice import Choice
from services.ledger.comparison import ParseMode, TurnReader, WriteCalls, restored_parts
from services.ledger.keys import DIGEST_BYTES, add, chain, squeeze, turn_key
from services.ledger.store import EntryStore, OriginalTurn, PromptCache, RestoredTurn, StoredEntry
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.encoder import Encoder
from services.tokenization.segments import TokenIds, common_prefix

MAX_SCOPES = 1024
MAX_ENDS = 16
"""Limit of places that are tried as the end of a turn's stretch: a turn that quotes end tokens has
several."""

Outcome: TypeAlias = Literal[
    "first", "reused", "unknown", "client", "ambiguous", "moved", "template"
]
"""What became of the newest turn: there is none; its tokens are in the prompt; it is not in the
ledger; its client changed it; it may be any of several; the text before it changed; the template
renders it differently."""


class LedgerModel(Struct, frozen=True):
    """The properties of a model that its ledger needs."""

    name: str
    digest: bytes
    """Digest of template, tokenizer and family: entries made with others are never found."""
    family: Family
    encoder: Encoder
    vocabulary: Vocabulary
    ends: tuple[str, ...]
    """Texts of the tokens that end a turn."""
    write_calls: WriteCalls | None = None
    """Writes calls that follow each other as the template does."""
    header: str = ""
    """The template's text before a turn of the model, without reasoning markers and white space
    around it."""
    placeholder: int | None = None
    """The token that stands for an image. Turns in which the model wrote it are not reused: they
    would look like one in the prompt."""


class RecalledPrompt(Struct, frozen=True):
    """A prompt's ids, and how many of them the ledger contributed."""

    ids: TokenIds
    outcome: Outcome
    reused: int
    """Tokens that were not encoded: those of an earlier prompt and the original ones of its turn."""
    context: LedgerContext | None
    """The context of the turn that follows; None where its entry could not be found again."""
    states: Sequence[bytes] = ()
    """The chain hash before each of the model's turns, the one that follows included."""
    text: str = ""
    """The rendered text."""


class _Base(Struct, frozen=True):
    """The part of a prompt that an entry covers: the prompt of `stored`, its turn, and where the
    text continues."""

    stored: StoredEntry
    end: int
    joint: str = ""
    tokens: int = 0
    """The number of the turn's tokens in the prompt; 0: all."""


class Ledger:
    """One model's ledger in one process. Thread-safe."""

    def __init__(self, model: LedgerModel, *, entry_bytes: int, prompt_bytes: int) -> None:
        """`entry_bytes` and `prompt_bytes` bound the memory for turns and for whole prompts."""
        self.model = model
        self.entries = EntryStore(entry_bytes)
        self.prompts = PromptCache(prompt_bytes)
        self._chains = ChainCache(prompt_bytes)
        self._scope_of = lru_cache(MAX_SCOPES)(partial(scope_of, model.name, model.digest))
        self.reader = TurnReader(
            model.family,
            model.vocabulary,
            model.encoder.cuts.tokens,
            model.write_calls,
            model.header,
        )
        self._end = (
            re.compile("|".join(map(re.escape, sorted(model.ends, key=len, reverse=True))))
            if model.ends
            else None
        )
        joint = model.family.style.joint
        starts = (joint, model.header) if joint else (model.header, *model.family.markers)
        self._starts = tuple(text for text in starts if text and text not in model.ends)
        self._guard = _guard(model.encoder)

    def add(self, entry: LedgerEntry) -> bool:
        """Keeps an entry with a verified signature. False: the ledger has it, or it is another
        model's."""
        return entry.model == self.model.name and self.entries.add(entry)

    def look_up(
        self, conversation: Conversation, tools: list[ToolSpec], unseal: Unseal | None = None
    ) -> "Recall":
        """Looks up a request's turns. `conversation` has no preamble; `tools` are as the model sees
        them."""
        links = self._chains.chain_of(conversation, self._scope_of(conversation.client.tenant))
        return Recall(self, conversation, links, tools, unseal)

    def read(self, entry: LedgerEntry, tools: list[ToolSpec]) -> OriginalTurn | None:
        """The text and parts of the entry's turn; None where its tokens cannot be read, or not be
        reused."""
        try:
            ids = unpack_ids(entry.ids)
            text = self.reader.text_of(ids) + entry.tail
        except (ValueError, IndexError, OverflowError, TypeError):
            return None
        if self.model.placeholder in ids:
            return None
        parts = self.reader.read(text, tools, ParseMode.of(entry))
        return None if parts is None else OriginalTurn(text, parts)

    def fragment(self, text: str) -> TokenIds:
        """The ids of text in the middle of a prompt: some tokenizers encode the start of a prompt
        differently."""
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

    def own_ends(self, text: str, start: int, turn: OriginalTurn) -> Iterable[int]:
        """Where a turn that begins at `start` may end for a template that writes no end of turn
        (Apertus, before a result): after the marker, or else the text, with which the turn itself
        ends."""
        bare = turn.text.rstrip()
        blanks = turn.text[len(bare) :]
        last = next((marker for marker in self.model.family.markers if bare.endswith(marker)), "")
        if not last and isinstance(turn.parts[-1], Text):
            last = turn.parts[-1].text.strip()
        at = start
        for _ in range(MAX_ENDS if last else 0):
            at = text.find(last, at)
            if at < 0:
                return
            at += len(last)
            yield at + len(common_prefix(blanks, text[at : at + len(blanks)]))

    def has_foreign_end(self, stretch: str, original: str) -> bool:
        """Whether a stretch holds an end token that the turn does not quote and that more of the
        model's output does not follow: text that a parser passes over between messages may be
        another role's."""
        if self._end is None:
            return False
        quoted = Counter(self._end.findall(original))
        for match in self._end.finditer(stretch):
            if not stretch[match.end() :].lstrip().startswith(self._starts):
                quoted[match[0]] -= 1
                if quoted[match[0]] < 0:
                    return True
        return False

    def without_header(self, stretch: str) -> str:
        """A stretch without the header of the model's messages. A template may write none when the
        model continues after a result, but one when all is history (some Gemma 4)."""
        header, rest = self.model.header, stretch.lstrip()
        return rest[len(header) :] if header and rest.startswith(header) else stretch


class Recall:
    """The look-up of one request's turns."""

    def __init__(
        self,
        ledger: Ledger,
        conversation: Conversation,
        links: Chain,
        tools: list[ToolSpec],
        unseal: Unseal | None,
    ) -> None:
        self._ledger = ledger
        self._conversation = conversation
        self._chain = links
        self._tools = tools
        self._unseal = unseal
        self._with_reasoning = conversation.thinking.history != "drop"
        self._choice = Choice(ledger.entries, conversation, links.links, unseal)
        self._choice.choose(self._restored)
        open_ended = bool(links.links) and links.links[-1].end == len(conversation.messages)
        self._answered_turns = len(links.links) - open_ended
        """The number of the model's turns that another message follows."""

    @property
    def missing(self) -> list[bytes]:
        """Keys of turns with entries that memory may lack."""
        return self._choice.missing

    def restore(self) -> Conversation:
        """The conversation with its turns as the model wrote them. A turn that the client changed
        stays as the client sent it; reasoning that the client dropped is restored, unless the
        request asks for dropping."""
        return replace(self._conversation, messages=self._choice.messages())

    def encode(self, text: str, prefix: str = "", *, continues: bool = False) -> RecalledPrompt:
        """The ids of a prompt. `text`: the conversation that `restore` returned, rendered.
        `prefix`: the opening of a forced call at its end. `continues`: it ends in the model's own
        last turn."""
        ledger = self._ledger
        base, outcome = self._base(text)
        context = self._context(
            text, ledger.reader.head_end(text, prefix), base, continues=continues
        )
        answered = self._chain.links[: self._answered_turns]
        states = [] if context is None else [*(link.state for link in answered), context.state]
        if base is None:
            return RecalledPrompt(
                ledger.model.encoder.encode(text), outcome, 0, context, states, text
            )
        prompt, turn = self._prompt(base.stored, text), base.stored.ids(base.tokens)
        rest = ledger.fragment(base.joint + text[base.end :])
        return RecalledPrompt(
            prompt + (turn + rest), outcome, len(prompt) + len(turn), context, states, text
        )

    def keep(self, prompt: RecalledPrompt) -> None:
        """Keeps the prompt's ids, for the turn that follows."""
        context = prompt.context
        if context is not None:
            parent = self._parent(context)
            earlier = None if parent is None else _prompt_key(parent.entry.context)
            self._ledger.prompts.put(_prompt_key(context), prompt.ids, instead_of=earlier)

    # -- which turn
    # -------------------------------------------------------------------------------------------------

    def _base(self, text: str) -> tuple[_Base | None, Outcome]:
        """The newest turn that the text still contains, and the outcome for the newest turn of all."""
        outcome: Outcome | None = None
        for index in range(self._answered_turns - 1, -1, -1):
            base, found = self._try(index, text)
            outcome = outcome or found
            if base is not None:
                return base, outcome
        return None, outcome or "first"

    def _try(self, index: int, text: str) -> tuple[_Base | None, Outcome]:
        """The turn at `index`, or else the earlier turn that its prompt was made of."""
        chosen = self._choice.chosen[index]
        if not chosen:
            return None, self._choice.doubts[index]
        stored = next(
            (stored for stored in chosen if self._has_head(stored.entry.context, text)), None
        )
        if stored is None:
            return None, "moved"
        if (base := self._stretch(stored, text)) is not None:
            return base, "reused"
        context = stored.entry.context
        parent = self._parent(context)
        # The text of the parent's turn lies within the compared head, and was read when this prompt
        # was made.
        base = (
            None
            if parent is None
            else _Base(parent, context.parent_end, context.joint, context.parent_tokens)
        )
        return base, "template"

    def _stretch(self, stored: StoredEntry, text: str) -> _Base | None:
        """The turn and the end of its stretch, if the template keeps the turn."""
        entry, turn, ledger, reader = (
            stored.entry,
            self._read(stored),
            self._ledger,
            self._ledger.reader,
        )
        assert turn is not None  # an entry with the same tokens was read when it was chosen
        start, opening, mode = entry.context.head_chars, entry.context.opening, ParseMode.of(entry)
        if not entry.closed:
            return self._cut_stretch(stored, turn, text)
        size = max(
            (len((part.text or "").strip()) for part in turn.parts if not isinstance(part, Call)),
            default=0,
        )
        for end in itertools.chain(ledger.ends(text, start), ledger.own_ends(text, start, turn)):
            if end - start < size:
                continue
            stretch = ledger.without_header(ledger.model.encoder.plain(text[start:end]))
            if ledger.has_foreign_end(stretch, turn.text):
                continue
            if reader.is_kept(turn, stretch, opening, self._tools, mode):
                return _Base(stored, end)
        return None

    def _cut_stretch(self, stored: StoredEntry, turn: OriginalTurn, text: str) -> _Base | None:
        """As `_stretch`, for a turn that was cut off: up to where the template's text is the
        turn's."""
        entry, ledger = stored.entry, self._ledger
        context, mode = entry.context, ParseMode.of(entry)
        rest = ledger.model.encoder.plain(text[context.head_chars :])
        shown = ledger.without_header(rest)
        agreement = ledger.reader.agreement(turn, shown, context.opening, self._tools, mode)
        if agreement is None or ledger.has_foreign_end(shown[: agreement[1]], turn.text):
            return None
        chars, end = agreement[0], len(text) - len(shown) + agreement[1]
        if chars == len(turn.text):
            return _Base(stored, end, entry.tail)
        tokens, within = ledger.reader.tokens_within(unpack_ids(entry.ids), chars)
        return _Base(stored, end, turn.text[within:chars], tokens) if tokens else None

    def _restored(self, number: int, stored: StoredEntry) -> list[Message] | None:
        """The turn's messages as the model wrote them, if the client did not change the turn."""
        turn, link = self._read(stored), self._chain.links[number]
        if turn is None:
            return None
        sent = self._conversation.messages[link.first : link.end]
        if (
            stored.entry.context.started
        ):  # the client started this turn: its text is not all the model's
            return sent
        cached, reasoning = stored.restored, self._with_reasoning
        if (
            cached is None
            or cached.with_reasoning != reasoning
            or cached.unseal != self._unseal
            or cached.sent != sent
        ):
            sent_parts = [part for message in sent for part in message.parts]
            parts = restored_parts(sent_parts, turn, self._unseal, with_reasoning=reasoning)
            if parts is None:
                return None
            restored = [Message("assistant", parts, sent[0].name)]
            cached = stored.restored = RestoredTurn(sent, restored, reasoning, self._unseal)
        return cached.messages

    def _read(self, stored: StoredEntry) -> OriginalTurn | None:
        """The text and parts of the entry's turn; None where they do not have the entry's key."""
        if stored.turn is None and not stored.unreadable:
            turn = self._ledger.read(stored.entry, self._tools)
            if turn is not None and stored.entry.beginning and not _is_turn(stored.entry, turn):
                # Its last token may have the first characters of the part after it.
                turn = replace(turn, parts=turn.parts[:-1])
            stored.turn = turn if turn is not None and _is_turn(stored.entry, turn) else None
            stored.unreadable = stored.turn is None
        return stored.turn

    # -- which ids
    # --------------------------------------------------------------------------------------------------

    def _prompt(self, stored: StoredEntry, text: str) -> TokenIds:
        """The ids of the prompt that this turn followed; its text is the beginning of `text`. They
        are in memory, or made again of the turns that the prompt was made of. Where one of those is
        lost, its text is encoded."""
        ledger = self._ledger
        steps: list[tuple[LedgerContext, StoredEntry | None]] = []
        context = stored.entry.context
        while (ids := ledger.prompts.get(_prompt_key(context))) is None:
            parent = self._parent(context)
            steps.append((context, parent))
            if parent is None:
                break
            context = parent.entry.context
        for context, parent in reversed(steps):
            if parent is None or ids is None:
                ids = ledger.model.encoder.encode(text[: context.head_chars] + context.opening)
            else:
                rest = (
                    context.joint + text[context.parent_end : context.head_chars] + context.opening
                )
                ids = ids + parent.ids(context.parent_tokens) + ledger.fragment(rest)
        assert ids is not None
        return ids

    def _context(
        self, text: str, head_chars: int, base: _Base | None, *, continues: bool
    ) -> LedgerContext | None:
        links, state, started = self._chain.links, self._chain.state, ""
        if self._answered_turns < len(links):
            if not continues:
                return None  # the client sends both turns back as one
            messages = self._conversation.messages[links[-1].first :]
            started, calls = text_and_calls(
                [part for message in messages for part in message.parts]
            )
            if calls:
                return None
            state, started = links[-1].state, squeeze(started)
        last = next(
            (
                chosen[0].entry
                for chosen in reversed(self._choice.chosen[: self._answered_turns])
                if chosen
            ),
            None,
        )
        context = LedgerContext(
            state,
            head_chars,
            head_hash(text, head_chars),
            self._ledger.model.encoder.plain(text[head_chars:]),
            started,
            previous=b"" if last is None else last.mac,
            previous_key=b"" if last is None else last.key,
            session=session_digest(self._conversation.client.session),
        )
        if base is None:
            return context
        entry = base.stored.entry
        return replace(
            context,
            parent=entry.mac,
            parent_tokens=base.tokens,
            parent_end=base.end,
            joint=base.joint,
        )

    def _has_head(self, context: LedgerContext, text: str) -> bool:
        """Whether the text begins with the prompt head that the turn followed."""
        return (
            0 <= context.head_chars <= len(text)
            and head_hash(text, context.head_chars) == context.head_hash
        )

    def _parent(self, context: LedgerContext) -> StoredEntry | None:
        return self._ledger.entries.get(context.parent) if context.parent else None


def _is_turn(entry: LedgerEntry, turn: OriginalTurn) -> bool:
    """Whether the turn has the entry's key."""
    text, calls = text_and_calls(turn.parts)
    return bool(turn.parts) and entry.key == turn_key(
        entry.context.state, entry.context.started + squeeze(text), calls
    )


def head_hash(text: str, end: int) -> bytes:
    """The hash of `text[:end]`."""
    data, rest = (part.encode("utf-8", "surrogatepass") for part in (text, text[end:]))
    return hashlib.blake2b(
        memoryview(data)[: len(data) - len(rest)], digest_size=DIGEST_BYTES
    ).digest()


def _prompt_key(context: LedgerContext) -> bytes:
    hasher = chain(context.parent)
    end = f"{context.parent_tokens}:{context.parent_end}"
    add(hasher, "prompt", end, context.joint, context.head_hash.hex(), context.opening)
    return hasher.digest()


def _guard(encoder: Encoder) -> str | None:
    """A control token that leaves the text after it unchanged: one that does not take white space
    (`rstrip`)."""
    return next(
        (token for token in encoder.cuts.tokens if len(encoder.encode(f"{token} \n{token}")) > 2),
        None,
    )

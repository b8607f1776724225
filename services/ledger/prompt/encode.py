"""Encodes prompts with the original tokens of the newest turn that the text still contains.

A prompt's ids are those of the prompt that this turn followed, the turn's own, and those of the
text after it. Everything is verified: the text before a turn (its prompt head) is compared by hash,
and what the template renders for the turn is parsed and compared. From the first difference on, the
text is encoded.
"""

import hashlib

from schemas.conversation import ToolSpec
from schemas.ledger import LedgerContext, ParentTurn, PreviousTurn
from schemas.session import session_digest
from services.ledger.lookup.match import Match, MatchedHistory, Outcome
from services.ledger.lookup.store import EntryStore, PromptCache
from services.ledger.prompt.comparison import KeptTurn, TurnComparison
from services.ledger.prompt.model import LedgerModel
from services.ledger.prompt.prompts import EncodedPrompt, RenderedPrompt
from services.ledger.turns.chain import parts_of, text_and_calls
from services.ledger.turns.keys import DIGEST_BYTES, add_record, new_hasher, squeeze
from services.ledger.turns.turn import Turn
from services.ledger.turns.turn_reader import TurnReader
from services.tokenization.encoder import Encoder
from services.tokenization.segments import TokenIds

_NO_PARENT = ParentTurn(b"", 0)


class PromptEncoder:
    """Encodes the prompts of one model. Thread-safe."""

    def __init__(
        self, model: LedgerModel, reader: TurnReader, turns: EntryStore, prompts: PromptCache
    ) -> None:
        self._encoder = model.encoder
        self._reader = reader
        self._comparison = TurnComparison(model, reader)
        self._turns = turns
        self._prompts = prompts
        self._guard = _guard(model.encoder)

    def encode(self, history: MatchedHistory, rendered: RenderedPrompt) -> EncodedPrompt:
        """The ids of a prompt. `rendered`: the restored history."""
        marked_text = rendered.marked_text
        heads = HeadHasher(marked_text)
        outcome, kept = self._newest_kept(history, rendered.tools.specs, heads)
        context = self._context(history, rendered, heads, kept)
        states = _states(history, context)
        if kept is None:
            ids = self._encoder.encode(marked_text)
            return EncodedPrompt(ids, outcome, 0, context, states, marked_text)

        prompt = self._prompt_before(kept.turn, marked_text)
        turn = kept.ids()
        rest = self.fragment(kept.place.joint + marked_text[kept.place.end :])
        reused = len(prompt) + len(turn)
        ids = prompt + (turn + rest)
        return EncodedPrompt(ids, outcome, reused, context, states, marked_text)

    def keep(self, prompt: EncodedPrompt) -> None:
        """Keeps the prompt's ids for the turn that follows, instead of those of its parent's
        prompt."""
        context = prompt.context
        if context is None:
            return
        parent = self._kept_parent(context)
        extended = _prompt_key(parent.turn.entry.context) if parent is not None else None
        self._prompts.put(_prompt_key(context), prompt.ids, instead_of=extended)

    # -- which turn

    def _newest_kept(
        self, history: MatchedHistory, tools: list[ToolSpec], heads: "HeadHasher"
    ) -> tuple[Outcome, KeptTurn | None]:
        """The outcome of the newest turn, and the newest turn that the text still contains."""
        newest = Outcome.FIRST
        for match in reversed(history.matches[: history.answered]):
            outcome, kept = self._kept(match, tools, heads)
            if newest is Outcome.FIRST:
                newest = outcome
            if kept is not None:
                return newest, kept
        return newest, None

    def _kept(
        self, match: Match, tools: list[ToolSpec], heads: "HeadHasher"
    ) -> tuple[Outcome, KeptTurn | None]:
        """The outcome of a turn; and the turn, or else its parent, if the text still has it."""
        turn = self._in_place(match, heads)
        if turn is None:
            outcome = Outcome.MOVED if match.turns else match.outcome
            return outcome, None
        kept = self._comparison.find(turn, heads.text, tools)
        if kept is not None:
            return Outcome.REUSED, kept
        return Outcome.TEMPLATE, self._kept_parent(turn.entry.context)

    def _in_place(self, match: Match, heads: "HeadHasher") -> Turn | None:
        """The turn of a match that follows the same prompt head in the text; None: it moved."""
        for turn in match.turns:
            context = turn.entry.context
            is_within = 0 <= context.head_chars <= len(heads.text)
            if is_within and heads.hash(context.head_chars) == context.head_hash:
                return turn
        return None

    def _kept_parent(self, context: LedgerContext) -> KeptTurn | None:
        """The turn that the prompt with this context was made of. Its text lies within the head of
        that prompt, which the text begins with, and was compared when that prompt was made."""
        parent = context.parent_turn
        if parent is None:
            return None
        turn = self._turns.get(parent.mac)
        if turn is None:
            return None
        return KeptTurn(turn, parent)

    # -- which ids

    def _prompt_before(self, turn: Turn, text: str) -> TokenIds:
        """The ids of the prompt that a turn followed; `text` begins with that prompt's text. They
        are in memory, or made again of the turns that the prompt was made of. Where one of those is
        lost, its text is encoded."""
        context = turn.entry.context
        ids = self._prompts.get(_prompt_key(context))
        forgotten: list[tuple[LedgerContext, KeptTurn]] = []
        """Prompts that are not in memory, newest first, each with the turn that it was made of."""
        while ids is None:
            parent = self._kept_parent(context)
            if parent is None:
                ids = self._encoder.encode(text[: context.head_chars] + context.opening)
                break
            forgotten.append((context, parent))
            context = parent.turn.entry.context
            ids = self._prompts.get(_prompt_key(context))

        for context, parent in reversed(forgotten):
            ids = self._extended(ids, parent, context, text)
        return ids

    def _extended(
        self, parent_prompt: TokenIds, parent: KeptTurn, context: LedgerContext, text: str
    ) -> TokenIds:
        """The ids of the prompt with this context, which extends its parent's prompt."""
        after_parent = text[parent.place.end : context.head_chars]
        rest = self.fragment(parent.place.joint + after_parent + context.opening)
        return parent_prompt + parent.ids() + rest

    def fragment(self, text: str) -> TokenIds:
        """The ids of text in the middle of a prompt: some tokenizers encode the start of a prompt
        differently."""
        encoder = self._encoder
        if not text or not self._guard or text.startswith(encoder.cuts.tokens):
            return encoder.encode(text)
        return encoder.encode(self._guard + text)[1:]

    # -- the turn that follows

    def _context(
        self,
        history: MatchedHistory,
        rendered: RenderedPrompt,
        heads: "HeadHasher",
        kept: KeptTurn | None,
    ) -> LedgerContext | None:
        """The context of the turn that follows; None where no request could find its entry."""
        start = _start_of_turn(history, continues=rendered.continues)
        if start is None:
            return None
        state, started = start
        text = heads.text
        head_chars = self._reader.head_end(text, rendered.prefix)
        previous: PreviousTurn | None = None
        turn = history.newest_turn()
        if turn is not None:
            previous = PreviousTurn(turn.entry.mac, turn.entry.key, turn.content)
        return LedgerContext(
            state,
            head_chars,
            heads.hash(head_chars),
            opening=self._encoder.plain(text[head_chars:]),
            started=started,
            session=session_digest(history.conversation.client.session),
            parent_turn=kept.place if kept is not None else None,
            previous_turn=previous,
        )


def _start_of_turn(history: MatchedHistory, *, continues: bool) -> tuple[bytes, str] | None:
    """The chain hash before the turn that follows, and the text with which the client starts it.
    None where the client will send it back as one turn with another, or starts it with a call."""
    open_turn = history.open_turn
    if open_turn is None:
        return history.chain.state, ""
    if not continues:
        return None
    text, calls = text_and_calls(parts_of(history.conversation.messages[open_turn.first :]))
    if calls:
        return None
    return open_turn.state, squeeze(text)


def _states(history: MatchedHistory, context: LedgerContext | None) -> list[bytes]:
    """`EncodedPrompt.states`; empty without a context of the turn that follows."""
    if context is None:
        return []
    answered = history.chain.turns[: history.answered]
    return [*(turn.state for turn in answered), context.state]


class HeadHasher:
    """Hashes heads of one text. A head that is not shorter than the one before it continues its
    hash: the head of a session's prompt begins with that of the prompt before."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._end = 0

    def hash(self, end: int) -> bytes:
        """The hash of `text[:end]`."""
        if end < self._end:
            self._hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
            self._end = 0
        self._hasher.update(self.text[self._end : end].encode("utf-8", "surrogatepass"))
        self._end = end
        return self._hasher.digest()


def _prompt_key(context: LedgerContext) -> bytes:
    parent = context.parent_turn or _NO_PARENT
    hasher = new_hasher(parent.mac)
    end = f"{parent.tokens}:{parent.end}"
    add_record(hasher, "prompt", end, parent.joint, context.head_hash.hex(), context.opening)
    return hasher.digest()


def _guard(encoder: Encoder) -> str:
    """A control token that leaves the text after it unchanged: one that does not take white space
    (`rstrip`); "" where there is none."""
    for token in encoder.cuts.tokens:
        if len(encoder.encode(f"{token} \n{token}")) > 2:
            return token
    return ""

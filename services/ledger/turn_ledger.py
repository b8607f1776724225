"""The turn ledger: turn N's tokens become the prefix of prompt N+1, unchanged (docs/ledger.md).

A prompt uses it in three steps, and is rendered after the first:

| step      | folder       | result                                                              |
|-----------|--------------|---------------------------------------------------------------------|
| `look_up` | `lookup/`    | of each turn of the conversation its match, or why there is none;   |
|           |              | the conversation with its turns as the model wrote them             |
| `encode`  | `prompt/`    | the rendered text's ids, with original tokens as far as it has them |
| `keep`    | `lookup/`    | these ids are kept for the turn that follows                        |
"""

from typing import ClassVar

from typing_extensions import override

from schemas.conversation import Conversation, ToolSpec, Unseal, opens_nothing
from schemas.ledger import LedgerEntry
from services.ledger.lookup.choice import choose
from services.ledger.lookup.match import MatchedHistory, Outcome
from services.ledger.lookup.restore import Restorer
from services.ledger.lookup.store import EntryStore, PromptCache
from services.ledger.prompt.encode import PromptEncoder
from services.ledger.prompt.model import LedgerModel
from services.ledger.prompt.prompts import EncodedPrompt, RenderedPrompt
from services.ledger.turns.chain import Chain, ChainCache
from services.ledger.turns.turn_reader import TurnReader
from services.tokenization.encoder import Encoder


class Ledger:
    """The earlier turns of one model. This one has none; a `TurnLedger` has those that it gets."""

    has_turns: ClassVar[bool] = False
    """Whether `look_up` may find turns."""

    def __init__(self, encoder: Encoder) -> None:
        """`encoder`: the model's."""
        self._encoder = encoder

    def look_up(
        self, conversation: Conversation, tools: list[ToolSpec], unseal: Unseal = opens_nothing
    ) -> MatchedHistory:
        """Looks up the turns of a conversation, which has no preamble. `tools`: as the model
        sees them."""
        return MatchedHistory(conversation, Chain([], b""), [])

    def encode(self, history: MatchedHistory, rendered: RenderedPrompt) -> EncodedPrompt:
        """The ids of a prompt. `history`: that of `look_up`; `rendered`: the same, restored."""
        ids = self._encoder.encode(rendered.marked_text)
        return EncodedPrompt(ids, Outcome.NOT_LOOKED_UP, 0, None)

    def keep(self, prompt: EncodedPrompt) -> None:
        """Keeps the ids of a prompt, for the turn that follows."""


class TurnLedger(Ledger):
    """One model's ledger in one process. Thread-safe."""

    has_turns = True

    def __init__(self, model: LedgerModel, *, entry_bytes: int, prompt_bytes: int) -> None:
        """`entry_bytes` and `prompt_bytes` bound the memory for turns and for whole prompts."""
        super().__init__(model.encoder)
        self.model = model
        self.entries = EntryStore(entry_bytes)
        self.reader = TurnReader(model.family, model.vocabulary, model.placeholder)
        self.encoder = PromptEncoder(model, self.reader, self.entries, PromptCache(prompt_bytes))
        self._chains = ChainCache(prompt_bytes)

    def add(self, entry: LedgerEntry) -> bool:
        """Keeps an entry with a verified signature. False: the ledger has it, or it is another
        model's."""
        return entry.model == self.model.name and self.entries.add(entry)

    @override
    def look_up(
        self, conversation: Conversation, tools: list[ToolSpec], unseal: Unseal = opens_nothing
    ) -> MatchedHistory:
        with_reasoning = conversation.thinking.history != "drop"
        restorer = Restorer(self.reader, tools, unseal, with_reasoning=with_reasoning)
        chain = self.chain_of(conversation)
        return choose(conversation, chain, self.entries, restorer, unseal)

    @override
    def encode(self, history: MatchedHistory, rendered: RenderedPrompt) -> EncodedPrompt:
        return self.encoder.encode(history, rendered)

    def chain_of(self, conversation: Conversation) -> Chain:
        """The hash keys of a conversation's turns."""
        scope = self.model.scope_of(conversation.client.tenant, conversation.adapter)
        return self._chains.chain_of(conversation, scope)

    @override
    def keep(self, prompt: EncodedPrompt) -> None:
        self.encoder.keep(prompt)

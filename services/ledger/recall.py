"""The turn ledger: turn N's tokens become the prefix of prompt N+1, unchanged (docs/ledger.md).

A `LedgerRecall` looks up one request's turns. It is used in two steps around the rendering:

| step      | folder       | result                                                              |
|-----------|--------------|---------------------------------------------------------------------|
| look up   | `lookup/`    | of each turn of the conversation its match, or why there is none    |
| `restore` | `lookup/`    | the conversation with its turns as the model wrote them             |
| `encode`  | `prompt/`    | the rendered text's ids, with original tokens as far as it has them |
"""

from typing import ClassVar

from typing_extensions import override

from schemas.conversation import Conversation, ToolSpec, Unseal, opens_nothing
from schemas.ledger import LedgerEntry
from services.ledger.lookup.choice import choose
from services.ledger.lookup.match import Outcome
from services.ledger.lookup.restore import Restorer
from services.ledger.lookup.store import EntryStore, PromptCache
from services.ledger.prompt.encode import EncodedPrompt, PromptEncoder
from services.ledger.prompt.model import LedgerModel
from services.ledger.turns.chain import Chain, ChainCache
from services.ledger.turns.turn_reader import TurnReader
from services.tokenization.encoder import Encoder


class Recall:
    """The turns of one request. These were not looked up, and stay as the client sent them; those
    of a `LedgerRecall` are restored."""

    def __init__(self, conversation: Conversation, encoder: Encoder) -> None:
        self._conversation = conversation
        self._encoder = encoder

    def restore(self) -> Conversation:
        """The conversation with its turns as the model wrote them. A turn that the client changed
        stays as the client sent it; reasoning that the client dropped is restored, unless the
        request asks for dropping."""
        return self._conversation

    def encode(self, text: str, prefix: str = "", *, continues: bool = False) -> EncodedPrompt:
        """The ids of a prompt. `text`: the conversation that `restore` returned, rendered.
        `prefix`: the opening of a forced call at its end. `continues`: it ends in the model's own
        last turn."""
        ids = self._encoder.encode(text)
        return EncodedPrompt(ids, Outcome.NOT_LOOKED_UP, 0, None)


class Ledger:
    """The earlier turns of one model. This one has none; a `TurnLedger` has those that it gets."""

    has_turns: ClassVar[bool] = False
    """Whether `recall` may find turns."""

    def recall(
        self,
        conversation: Conversation,
        tools: list[ToolSpec],
        encoder: Encoder,
        unseal: Unseal = opens_nothing,
    ) -> Recall:
        """Looks up the turns of a conversation, which has no preamble. `tools`: as the model sees
        them; `encoder`: the model's."""
        return Recall(conversation, encoder)

    def keep(self, prompt: EncodedPrompt) -> None:
        """Keeps the ids of a prompt, for the turn that follows."""


NO_LEDGER = Ledger()


class TurnLedger(Ledger):
    """One model's ledger in one process. Thread-safe."""

    has_turns = True

    def __init__(self, model: LedgerModel, *, entry_bytes: int, prompt_bytes: int) -> None:
        """`entry_bytes` and `prompt_bytes` bound the memory for turns and for whole prompts."""
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
    def recall(
        self,
        conversation: Conversation,
        tools: list[ToolSpec],
        encoder: Encoder,
        unseal: Unseal = opens_nothing,
    ) -> "LedgerRecall":
        return LedgerRecall(self, conversation, tools, encoder, unseal)

    def chain_of(self, conversation: Conversation) -> Chain:
        """The hash keys of a conversation's turns."""
        scope = self.model.scope_of(conversation.client.tenant, conversation.adapter)
        return self._chains.chain_of(conversation, scope)

    @override
    def keep(self, prompt: EncodedPrompt) -> None:
        self.encoder.keep(prompt)


class LedgerRecall(Recall):
    """The look-up of one request's turns in a ledger."""

    def __init__(
        self,
        ledger: TurnLedger,
        conversation: Conversation,
        tools: list[ToolSpec],
        encoder: Encoder,
        unseal: Unseal,
    ) -> None:
        super().__init__(conversation, encoder)
        with_reasoning = conversation.thinking.history != "drop"
        restorer = Restorer(ledger.reader, tools, unseal, with_reasoning=with_reasoning)
        chain = ledger.chain_of(conversation)
        self._history = choose(conversation, chain, ledger.entries, restorer, unseal)
        self.missing = self._history.missing
        """Keys of turns with entries that memory may lack."""
        self._prompts = ledger.encoder
        self._tools = tools

    @override
    def restore(self) -> Conversation:
        return self._history.restored()

    @override
    def encode(self, text: str, prefix: str = "", *, continues: bool = False) -> EncodedPrompt:
        return self._prompts.encode(self._history, self._tools, text, prefix, continues=continues)

"""The turn ledger: turn N's tokens become the prefix of prompt N+1, unchanged (docs/ledger.md).

A `Recall` looks up one request's turns. It is used in two steps around the rendering:

| step      | file         | result                                                              |
|-----------|--------------|---------------------------------------------------------------------|
| look up   | `choice.py`  | of each turn of the conversation its match, or why there is none    |
| `restore` | `restore.py` | the conversation with its turns as the model wrote them             |
| `encode`  | `encode.py`  | the rendered text's ids, with original tokens as far as it has them |
"""

from collections.abc import Callable
from typing import TypeAlias

from typing_extensions import override

from schemas.conversation import Conversation, ToolSpec, Unseal
from schemas.ledger import LedgerEntry
from services.ledger.chain import Chain, ChainCache
from services.ledger.choice import choose
from services.ledger.encode import EncodedPrompt, PromptEncoder
from services.ledger.match import MatchedHistory, Outcome
from services.ledger.model import LedgerModel
from services.ledger.restore import Restorer
from services.ledger.store import EntryStore, PromptCache
from services.ledger.turn_reader import TurnReader
from services.tokenization.encoder import Encoder

OnStep: TypeAlias = Callable[[str], None]
"""Called at the start of the steps `strip`, `ledger` (restore, if there is a ledger), `render` and
`encode` of a prompt, with this name. The step limit is not reported; a raw prompt only has
`encode`."""


def opens_nothing(seal: str) -> str | None:
    """An `Unseal` for clients without sealed reasoning."""
    return None


def no_step(name: str) -> None:
    """An `OnStep` that does nothing."""


class NoLedger:
    """A ledger that has no turns."""

    def recall(
        self,
        conversation: Conversation,
        tools: list[ToolSpec],
        unseal: Unseal,
        encoder: Encoder,
        on_step: OnStep,
    ) -> "NoRecall":
        """Looks up a request's turns, as `Ledger.look_up`. `encoder`: that of the model;
        `on_step`: called if there is something to look up."""
        return NoRecall(conversation, encoder)

    def keep(self, prompt: EncodedPrompt) -> None:
        """Keeps the ids of a prompt, for the turn that follows."""


NO_LEDGER = NoLedger()


class Ledger(NoLedger):
    """One model's ledger in one process. Thread-safe."""

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

    def look_up(
        self, conversation: Conversation, tools: list[ToolSpec], unseal: Unseal = opens_nothing
    ) -> "Recall":
        """Looks up a request's turns. `conversation` has no preamble; `tools` are as the model sees
        them."""
        scope = self.model.scope_of(conversation.client.tenant)
        chain = self._chains.chain_of(conversation, scope)
        return Recall(self, conversation, chain, tools, unseal)

    @override
    def recall(
        self,
        conversation: Conversation,
        tools: list[ToolSpec],
        unseal: Unseal,
        encoder: Encoder,
        on_step: OnStep,
    ) -> "Recall":
        on_step("ledger")
        return self.look_up(conversation, tools, unseal)

    @override
    def keep(self, prompt: EncodedPrompt) -> None:
        self.encoder.keep(prompt)


class NoRecall:
    """The turns of one request that were not looked up: they stay as the client sent them."""

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
        return EncodedPrompt(self._encoder.encode(text), Outcome.NOT_LOOKED_UP, 0, None)


class Recall(NoRecall):
    """The look-up of one request's turns."""

    def __init__(
        self,
        ledger: Ledger,
        conversation: Conversation,
        chain: Chain,
        tools: list[ToolSpec],
        unseal: Unseal,
    ) -> None:
        super().__init__(conversation, ledger.model.encoder)
        with_reasoning = conversation.thinking.history != "drop"
        restorer = Restorer(ledger.reader, tools, unseal, with_reasoning=with_reasoning)
        choice = choose(conversation, chain.turns, ledger.entries, restorer, unseal)
        self.missing = choice.missing
        """Keys of turns with entries that memory may lack."""
        self._history = MatchedHistory(conversation, chain, choice.matches)
        self._prompts = ledger.encoder
        self._tools = tools

    @override
    def restore(self) -> Conversation:
        return self._history.restored()

    @override
    def encode(self, text: str, prefix: str = "", *, continues: bool = False) -> EncodedPrompt:
        return self._prompts.encode(self._history, self._tools, text, prefix, continues=continues)

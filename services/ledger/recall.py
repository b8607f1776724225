"""The turn ledger: turn N's tokens become the prefix of prompt N+1, unchanged (docs/ledger.md).

A `LedgerRecall` looks up one request's turns. It is used in two steps around the rendering:

| step      | file         | result                                                              |
|-----------|--------------|---------------------------------------------------------------------|
| look up   | `choice.py`  | of each turn of the conversation its match, or why there is none    |
| `restore` | `restore.py` | the conversation with its turns as the model wrote them             |
| `encode`  | `encode.py`  | the rendered text's ids, with original tokens as far as it has them |
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct
from typing_extensions import override

from schemas.conversation import Conversation, ToolSpec, Unseal, opens_nothing
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


def no_step(name: str) -> None:
    """An `OnStep` that does nothing."""


class RecallRequest(Struct, frozen=True):
    """What a ledger needs to look up the turns of a conversation."""

    conversation: Conversation
    """Without preamble."""
    tools: list[ToolSpec]
    """The tools as the model sees them."""
    encoder: Encoder
    """The model's."""
    unseal: Unseal = opens_nothing
    on_step: OnStep = no_step
    """Called with the step `ledger` by a ledger that may have turns."""


class Recall:
    """The turns of one request. These were not looked up, and stay as the client sent them; those
    of a `LedgerRecall` are restored."""

    def __init__(self, request: RecallRequest) -> None:
        self._request = request

    def restore(self) -> Conversation:
        """The conversation with its turns as the model wrote them. A turn that the client changed
        stays as the client sent it; reasoning that the client dropped is restored, unless the
        request asks for dropping."""
        return self._request.conversation

    def encode(self, text: str, prefix: str = "", *, continues: bool = False) -> EncodedPrompt:
        """The ids of a prompt. `text`: the conversation that `restore` returned, rendered.
        `prefix`: the opening of a forced call at its end. `continues`: it ends in the model's own
        last turn."""
        ids = self._request.encoder.encode(text)
        return EncodedPrompt(ids, Outcome.NOT_LOOKED_UP, 0, None)


class Ledger:
    """The earlier turns of one model. This one has none; a `TurnLedger` has those that it gets."""

    def recall(self, request: RecallRequest) -> Recall:
        """Looks up a request's turns."""
        return Recall(request)

    def keep(self, prompt: EncodedPrompt) -> None:
        """Keeps the ids of a prompt, for the turn that follows."""


NO_LEDGER = Ledger()


class TurnLedger(Ledger):
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

    @override
    def recall(self, request: RecallRequest) -> "LedgerRecall":
        request.on_step("ledger")
        conversation = request.conversation
        scope = self.model.scope_of(conversation.client.tenant)
        chain = self._chains.chain_of(conversation, scope)
        return LedgerRecall(self, request, chain)

    @override
    def keep(self, prompt: EncodedPrompt) -> None:
        self.encoder.keep(prompt)


class LedgerRecall(Recall):
    """The look-up of one request's turns in a ledger."""

    def __init__(self, ledger: TurnLedger, request: RecallRequest, chain: Chain) -> None:
        super().__init__(request)
        conversation = request.conversation
        with_reasoning = conversation.thinking.history != "drop"
        restorer = Restorer(
            ledger.reader, request.tools, request.unseal, with_reasoning=with_reasoning
        )
        choice = choose(conversation, chain.turns, ledger.entries, restorer, request.unseal)
        self.missing = choice.missing
        """Keys of turns with entries that memory may lack."""
        self._history = MatchedHistory(conversation, chain, choice.matches)
        self._prompts = ledger.encoder

    @override
    def restore(self) -> Conversation:
        return self._history.restored()

    @override
    def encode(self, text: str, prefix: str = "", *, continues: bool = False) -> EncodedPrompt:
        tools = self._request.tools
        return self._prompts.encode(self._history, tools, text, prefix, continues=continues)

"""Prepares turns: makes the prompt of each on the event loop or in a thread, and what its worker
gets besides."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from schemas.control import ModelCard
from schemas.conversation import Conversation, Unseal
from schemas.requests import TurnRequest
from services.guides.promises import GRAMMAR
from services.ledger.recall import Ledger
from services.preprocessor.fingerprints import Fingerprints
from services.preprocessor.guide import Guided, TurnGuide, enforcement, turn_guide
from services.preprocessor.ledger_reader import (
    NO_LEDGER_READER,
    LedgerReader,
    UnfetchedTurns,
)
from services.preprocessor.model import ModelSetup
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.prompt import (
    LimitedPrompt,
    OnStep,
    Prompt,
    assemble,
    encode_prompt,
    no_step,
)
from services.preprocessor.second_try import second_try
from services.preprocessor.threads import PromptThreads, expected_s
from services.preprocessor.turn_builder import prepare_turn
from services.runtime.config.base import MIB
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.presence.registry import cards_of
from services.runtime.process import Process
from services.runtime.storage.seal import Sealer

SomePrompt = TypeVar("SomePrompt", bound=Prompt)


class Preparation:
    """Prepares one model's turns."""

    def __init__(
        self,
        process: Process,
        setup: ModelSetup,
        sealer: Sealer,
        config: PreprocessorConfig,
        ledger: LedgerReader = NO_LEDGER_READER,
    ) -> None:
        self.setup = setup
        self.threads = PromptThreads(setup, process.log, config.threads, config.render_timeout_s)
        self._process = process
        self._sealer = sealer
        self._ledger = ledger
        self._guide_calls = config.guide_calls
        self._fingerprints = Fingerprints(
            config.prompt_cache_mb * MIB,
            asyncio.get_running_loop().time,
            strip=setup.strip_preamble,
        )

    async def make_prompt(
        self, conversation: Conversation, *, size: int, on_step: OnStep = no_step
    ) -> LimitedPrompt:
        """The prompt of a turn. `on_step` and exceptions are those of `assemble`; `on_step` is
        called on any thread, again for repeated steps.

        `size`: bytes of the request. Raises Invalid, which names the template, where rendering
        takes too long.
        """
        window = self._window()

        def make(ledger: Ledger) -> LimitedPrompt:
            return assemble(
                conversation,
                self.setup,
                window=window,
                unseal=self._unseal(conversation),
                ledger=ledger,
                on_step=on_step,
            )

        return await self._with_turns(expected_s(self.setup, conversation, size), make)

    async def encode_prompt(self, conversation: Conversation, *, size: int) -> Prompt:
        """The prompt of a conversation that is not sent to a worker. Exceptions are those of
        `encode_prompt`; `size` is that of `make_prompt`."""
        seconds = expected_s(self.setup, conversation, size)
        return await self._with_turns(seconds, lambda ledger: self._encode(conversation, ledger))

    async def make_turn(
        self, request: TurnRequest, prompt: LimitedPrompt, deadline: float
    ) -> PreparedTurn:
        """The turn of a request with this prompt."""
        conversation = request.conversation
        if request.broken_call is not None:
            prompt = second_try(prompt, request.broken_call, self._features())
        guide = await self._guide(request, prompt)
        comparison = self._fingerprints.compare(request.turn, conversation, prompt)
        return prepare_turn(
            request, prompt, self.setup, guide, comparison=comparison, deadline=deadline
        )

    def encode_prompt_here(self, conversation: Conversation) -> Prompt:
        """The prompt of a conversation, without fetching turns from the bucket. For the threads of
        `threads`."""
        return self.threads.run_here(lambda: self._encode(conversation, self._ledger.ledger))

    async def _with_turns(self, seconds: float, make: Callable[[Ledger], SomePrompt]) -> SomePrompt:
        """Makes a prompt with a ledger. Turns that are only in the ledger's bucket are fetched
        first. `seconds`: the time that this is expected to take."""
        try:
            return await self.threads.run_limited(seconds, lambda: make(self._ledger.fetched))
        except UnfetchedTurns as unfetched:
            await self._ledger.fetch(unfetched.keys)
        return await self.threads.run_limited(seconds, lambda: make(self._ledger.ledger))

    def _encode(self, conversation: Conversation, ledger: Ledger) -> Prompt:
        """`encode_prompt` with these arguments, in any thread."""
        unseal = self._unseal(conversation)
        return encode_prompt(conversation, self.setup, unseal=unseal, ledger=ledger)

    def _unseal(self, conversation: Conversation) -> Unseal:
        return self._sealer.of(conversation.client.tenant).open

    async def _guide(self, request: TurnRequest, prompt: LimitedPrompt) -> TurnGuide:
        conversation = request.conversation
        engines = [GRAMMAR in card.features for card in self._workers()]
        how = enforcement(conversation, self._guide_calls, engines, resumed=bool(request.resume))
        guide = partial(turn_guide, conversation, prompt, self.setup, how)
        return await self.threads.run(guide) if isinstance(how, Guided) else guide()

    def _features(self) -> Collection[str]:
        """The features that all engines have."""
        features = [set(card.features) for card in self._workers()]
        return set.intersection(*features) if features else ()

    def _workers(self) -> list[ModelCard]:
        """The model's entries of the living workers."""
        return cards_of(self._process.registry.living("worker"), self.setup.card.name)

    def _window(self) -> int | None:
        """The widest context window among the workers; None where there is none yet."""
        model = self.setup.card.name
        workers = self._process.registry.able("worker", model)
        return max((card.max_model_len for card in cards_of(workers, model)), default=None)

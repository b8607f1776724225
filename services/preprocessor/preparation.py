"""Prepares turns: makes the prompt of each on the event loop or in a thread, and what its worker
gets besides."""

import asyncio
from functools import partial
from itertools import chain

from schemas.conversation import Conversation
from schemas.frames import TurnRequest
from services.guides.promises import GRAMMAR, promises
from services.preprocessor.fingerprints import Fingerprints
from services.preprocessor.guide import TurnGuide, turn_guide
from services.preprocessor.ledger_reader import NO_LEDGER, NoLedger, UnfetchedTurns
from services.preprocessor.model import ModelSetup
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.prompt import LookUp, OnStep, Prompt, assemble, no_step
from services.preprocessor.threads import PromptThreads, Work, expected_s
from services.preprocessor.turn_builder import prepare_turn
from services.runtime.config import MIB, PreprocessorConfig
from services.runtime.process import Process
from services.runtime.storage.seal import Sealer


class Preparation:
    """Prepares one model's turns."""

    def __init__(
        self,
        process: Process,
        setup: ModelSetup,
        sealer: Sealer,
        config: PreprocessorConfig,
        ledger: NoLedger = NO_LEDGER,
    ) -> None:
        self.setup = setup
        self.threads = PromptThreads(setup, process.log, config.threads, config.render_timeout_s)
        self._process = process
        self._sealer = sealer
        self._ledger = ledger
        self._fingerprints = Fingerprints(
            config.prompt_cache_mb * MIB,
            asyncio.get_running_loop().time,
            strip=setup.strip_preamble,
        )

    async def make_prompt(
        self, conversation: Conversation, *, limit: bool, size: int, on_step: OnStep = no_step
    ) -> Prompt:
        """The prompt of a conversation. Turns that are only in the ledger's bucket are fetched
        first. `limit`, `on_step` and exceptions are those of `assemble`; `on_step` is called on any
        thread, again for repeated steps.

        `size`: bytes of the request. Raises Invalid, which names the template, where rendering
        takes too long.
        """
        seconds = expected_s(self.setup, conversation, size)
        try:
            work = self._assembly(conversation, self._ledger.look_up_fetched, on_step, limit=limit)
            return await self.threads.run_limited(work, seconds)
        except UnfetchedTurns as unfetched:
            await self._ledger.fetch(unfetched.keys)
        work = self._assembly(conversation, self._ledger.look_up, on_step, limit=limit)
        return await self.threads.run_limited(work, seconds)

    async def make_turn(
        self, request: TurnRequest, prompt: Prompt, deadline: float
    ) -> PreparedTurn:
        """The turn of a request with this prompt."""
        conversation = request.conversation
        guide = await self._guide(conversation, prompt)
        comparison = self._fingerprints.compare(request.turn, conversation, prompt)
        return prepare_turn(
            request, prompt, self.setup, guide, comparison=comparison, deadline=deadline
        )

    def make_prompt_here(self, conversation: Conversation) -> Prompt:
        """The prompt of a conversation, without a limit of its output, and without fetching turns
        from the bucket. For the threads of `threads`."""
        work = self._assembly(conversation, self._ledger.look_up, no_step, limit=False)
        return self.threads.run_here(work)

    def _assembly(
        self, conversation: Conversation, look_up: LookUp | None, on_step: OnStep, *, limit: bool
    ) -> Work[Prompt]:
        """The work of `assemble` with these arguments, for any thread."""
        return partial(
            assemble,
            conversation,
            self.setup,
            window=self._window() if limit else None,
            limit=limit,
            unseal=self._sealer.of(conversation.client.tenant).open,
            look_up=look_up,
            on_step=on_step,
        )

    async def _guide(self, conversation: Conversation, prompt: Prompt) -> TurnGuide:
        with_grammar = self._can_guide() and bool(promises(conversation))
        guide = partial(turn_guide, conversation, prompt, self.setup, with_grammar=with_grammar)
        return await self.threads.run(guide) if with_grammar else guide()

    def _can_guide(self) -> bool:
        """Whether a worker's engine can enforce a grammar."""
        workers = self._process.registry.living("worker")
        model = self.setup.card.name
        cards = chain.from_iterable(worker.models for worker in workers)
        return any(card.name == model and GRAMMAR in card.features for card in cards)

    def _window(self) -> int | None:
        """The widest context window among the workers; None where there is none yet."""
        workers = self._process.registry.able("worker", self.setup.card.name)
        cards = chain.from_iterable(worker.models for worker in workers)
        return max((card.max_model_len for card in cards), default=None)

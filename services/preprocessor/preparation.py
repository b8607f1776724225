"""Prepares turns: makes the prompt of each on the event loop or in a thread, finds the settings of
its output, and what its worker gets besides."""

import asyncio
from collections.abc import Collection

from schemas.control import ModelCard
from schemas.conversation import Conversation, Unseal
from schemas.requests import TurnRequest
from services.guides.promises import GRAMMAR
from services.preprocessor.changes.fingerprints import Fingerprints
from services.preprocessor.guide import Guided, TurnGuide, TurnGuides, enforcement
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.observer import AttemptObserver
from services.preprocessor.output_settings import (
    OutputSettings,
    check_sampling,
    output_settings,
    second_try,
)
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.prompt.prompt_maker import OnStep, Prompt, PromptMaker, no_step
from services.preprocessor.prompt.raw_prompt import make_raw_prompt
from services.preprocessor.threads import PromptThreads, expected_s
from services.preprocessor.turn_builder import build_turn
from services.runtime.config.base import MIB
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.presence.registry import cards_of
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
        ledger: LedgerReader,
    ) -> None:
        self.setup = setup
        self.threads = PromptThreads(setup, process.log, config.threads, config.render_timeout_s)
        self._process = process
        self._sealer = sealer
        self._ledger = ledger
        self._prompts = PromptMaker(setup, ledger.ledger)
        self._guides = TurnGuides(setup)
        self._guide_calls = config.guide_calls
        self._fingerprints = Fingerprints(
            config.prompt_cache_mb * MIB,
            asyncio.get_running_loop().time,
            strip=setup.strip_preamble,
        )

    async def make_prompt(
        self, conversation: Conversation, *, size: int, on_step: OnStep = no_step
    ) -> Prompt:
        """The prompt of a conversation. Turns that only the ledger's bucket has are fetched.

        `size`: bytes of the request. `on_step` is called on any thread, again for repeated steps.
        Raises as `PromptMaker.make`, and Invalid, which names the template, where rendering takes
        too long.
        """
        seconds = expected_s(self.setup, conversation, size)
        run = self.threads.run_limited
        raw = conversation.prompt
        if raw is not None:
            on_step("encode")
            return await run(seconds, make_raw_prompt, conversation, raw, self.setup.tokenizer)

        unseal = self._unseal(conversation)
        prompts = self._prompts
        started = await run(seconds, prompts.start, conversation, unseal, on_step)
        if await self._ledger.fetch(started.history.missing):
            started = await run(seconds, prompts.start, conversation, unseal, on_step)
        return await run(seconds, prompts.finish, started)

    def make_prompt_here(self, conversation: Conversation) -> Prompt:
        """The prompt of a conversation, without fetching turns from the bucket. For the threads of
        `threads`."""
        return self.threads.run_here(self._prompts.make, conversation, self._unseal(conversation))

    async def prepare_turn(
        self, request: TurnRequest, observer: AttemptObserver, *, size: int, deadline: float
    ) -> PreparedTurn:
        """The turn of a request. `size` and exceptions are those of `make_prompt`; raises Invalid
        for stop strings or ids that cannot be served, too, and ContextOverflow where prompt and
        answer do not fit."""
        conversation = request.conversation
        sampling = conversation.sampling
        check_sampling(sampling, self.setup.tokenizer.vocab_size)

        prompt = await self.make_prompt(conversation, size=size, on_step=observer.step)
        output = output_settings(sampling, self.setup, len(prompt.ids), self._window())
        if request.broken_call is not None:
            output = second_try(output, request.broken_call, self._features())

        # Here, and not earlier: a prompt that does not fit is neither kept nor counted. Not later:
        # the time to make the prompt is measured, without that for a guide.
        self._ledger.ledger.keep(prompt.encoded)
        observer.prompt_made(prompt)

        guide = await self._guide(request, prompt, output)
        comparison = self._fingerprints.compare(request.turn, conversation, prompt)
        return build_turn(
            request, prompt, output, self.setup, guide, comparison=comparison, deadline=deadline
        )

    def _unseal(self, conversation: Conversation) -> Unseal:
        return self._sealer.of(conversation.client.tenant).open

    async def _guide(
        self, request: TurnRequest, prompt: Prompt, output: OutputSettings
    ) -> TurnGuide:
        conversation = request.conversation
        engines = [GRAMMAR in card.features for card in self._workers()]
        how = enforcement(conversation, self._guide_calls, engines, resumed=bool(request.resume))
        if isinstance(how, Guided):
            return await self.threads.run(self._guides.guide, conversation, prompt, output, how)
        return self._guides.guide(conversation, prompt, output, how)

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

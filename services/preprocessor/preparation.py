"""Prompts made in a small thread pool, with the ledger's help: the shell around `assemble`."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from schemas.conversation import Conversation
from schemas.errors import TurnwireError
from services.parser.seal import Sealer
from services.preprocessor.audit import Check
from services.preprocessor.ledger_feed import Gap, LedgerFeed
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, assemble
from services.runtime.process import Process

T = TypeVar("T")


class Preparation:
    """Makes one model's prompts."""

    def __init__(
        self, process: Process, setup: ModelSetup, sealer: Sealer, threads: int, ledger: LedgerFeed | None
    ) -> None:
        self.setup = setup
        self.ledger = ledger
        self._process = process
        self._unseal = sealer.open
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prepare")

    async def prompt(self, conversation: Conversation, *, limit: bool) -> Prompt:
        """The prompt of a conversation. Turns that are only in the ledger's bucket are fetched before. For `limit`, and
        what is raised, see `assemble`."""
        make = partial(assemble, conversation, self.setup, window=self._window(), limit=limit, unseal=self._unseal)
        ledger = self.ledger
        if ledger is None:
            return await self.run(make)
        try:
            prompt = await self.run(partial(make, remember=ledger.remember))
        except Gap as gap:
            await ledger.fetch(gap.keys)
            prompt = await self.run(partial(make, remember=ledger.remember_known))
        if limit and prompt.found is not None:
            ledger.count(prompt.found)
        return prompt

    def ids(self, conversation: Conversation) -> Sequence[int]:
        """A conversation's prompt, of what memory has; for any thread."""
        remember = self.ledger.remember_known if self.ledger is not None else None
        return assemble(conversation, self.setup, limit=False, unseal=self._unseal, remember=remember).ids

    async def audit(self, check: Check) -> None:
        """Compares a prompt that was sent with one made in the ordinary way, while nobody waits for it."""
        log = self._process.log
        try:
            found = await self.run(check)
        except TurnwireError as error:
            log.warning("preprocessor.audit_failed", error=str(error))
            return
        if found is not None:
            log.error("preprocessor.preparation_differed", found=found, remedy="turned off until the next start")

    async def run(self, work: Callable[[], T]) -> T:
        """Runs something beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Nothing more is asked for."""
        self._pool.shutdown(wait=False)

    def _window(self) -> int | None:
        """The widest context window among the workers; None where there is none yet."""
        beats = self._process.registry.able("worker", self.setup.card.name)
        return max((card.max_model_len for beat in beats for card in beat.models), default=None)

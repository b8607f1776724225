"""Prompts made with the ledger's help, long ones in a small thread pool: the shell around `assemble`."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from schemas.conversation import Conversation
from schemas.errors import TurnwireError
from services.preprocessor.audit import Check
from services.preprocessor.ledger_feed import Gap, LedgerFeed
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, assemble
from services.runtime.process import Process
from services.runtime.seal import Sealer

T = TypeVar("T")

FAST_BYTES, SLOW_BYTES = 65_536, 4096
"""Of new text that is encoded on the event loop, by fastokens and by tokenizers: 0.3 and 1 ms."""


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

    async def prompt(self, conversation: Conversation, *, limit: bool, size: int, fresh: int) -> Prompt:
        """The prompt of a conversation. Turns that are only in the ledger's bucket are fetched before. For `limit`, and
        what is raised, see `assemble`.

        `size`: of the request, in bytes; `fresh`: how many of them were not known. Where they are few, the prompt is
        made here and now: that is sooner done than handed to a thread and back.
        """
        make = partial(assemble, conversation, self.setup, window=self._window(), limit=limit, unseal=self._unseal)
        ledger, here = self.ledger, self._is_short(size, fresh)
        if ledger is None:
            return make() if here else await self.run(make)
        try:
            known = partial(make, remember=ledger.remember)
            prompt = known() if here else await self.run(known)
        except Gap as gap:
            await ledger.fetch(gap.keys)
            prompt = await self.run(partial(make, remember=ledger.remember_known))
        if limit and prompt.found is not None:
            ledger.count(prompt.found)
        return prompt

    def _is_short(self, size: int, fresh: int) -> bool:
        """Whether a prompt takes no longer than other messages may wait for it: a millisecond or two."""
        setup = self.setup
        most = FAST_BYTES if setup.encoder.name == "fastokens" else SLOW_BYTES
        return (fresh if setup.history.off is None else size) <= most

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

"""Runs `assemble` for the preprocessor: with the ledger, on the event loop or in a small thread pool."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from schemas.conversation import Conversation
from schemas.errors import DEADLINE_PASSED, Invalid, TimedOut, TurnwireError
from services.preprocessor.ledger.reader import LedgerReader
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.assembly import OnStep, Prompt, PromptDraft, assemble, no_step
from services.preprocessor.prompt.audit import Check
from services.runtime.observability.metrics import CountCollector
from services.runtime.process import Process
from services.runtime.storage.seal import Sealer
from services.tokenization.encoder import TooLong

T = TypeVar("T")

FAST_BYTES, SLOW_BYTES = 262_144, 4096
"""Bytes of new text of which a prompt is made on the event loop, with fastokens and with tokenizers: 4 and 1 ms. In a
thread, it would hold the interpreter's lock for most of that time, and other messages would wait all the same."""
LOOP_S = 0.01
"""A prompt that takes more CPU time on the event loop is made again in a thread."""
FAST_CHARS, SLOW_CHARS = 524_288, 32_768
"""Characters that are encoded on the loop: a template may write more text than it gets."""
POOL_S = 1.0
"""A template that takes longer is run again in a thread for slow templates, so that they do not hold up the others."""
SLOW_THREADS = 2
KEEP_DELAY_S = 0.02
"""Within this time a turn has mostly sent its first token, for which the same cores work."""
SEND_TICKS = 3
"""Ticks of the event loop until a request is written to the bus."""


def seconds_left(deadline: float | None, now: float) -> float | None:
    """Returns the time until the deadline of a request, None if it has none.

    Raises:
        TimedOut: it has passed. The client no longer waits for the turn.
    """
    if deadline is not None and deadline <= now:
        raise TimedOut("The request took longer than this server allows.", code=DEADLINE_PASSED)
    return None if deadline is None else deadline - now


class Preparation:
    """Makes one model's prompts."""

    def __init__(
        self,
        process: Process,
        setup: ModelSetup,
        sealer: Sealer,
        threads: int,
        ledger: LedgerReader | None,
        *,
        render_timeout_s: float = 10.0,
    ) -> None:
        """`render_timeout_s`: the time that the chat template may take for one prompt."""
        self.setup = setup
        self.ledger = ledger
        self._process = process
        self._sealer = sealer
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._slow_pool = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="slow-template")
        self._render_timeout_s = render_timeout_s

    async def prompt(
        self, conversation: Conversation, *, limit: bool, size: int, fresh: int, on_step: OnStep = no_step
    ) -> Prompt:
        """The prompt of a conversation. Turns that are only in the ledger's bucket are fetched first. For `limit`,
        `on_step` and exceptions see `PromptDraft`; `on_step` is called on any thread, again for repeated steps.

        `size`: bytes of the request; `fresh`: bytes that were not known. With few of them the prompt is made on the
        event loop, which takes less time than a thread's switches. A template that takes long all the same leaves the
        loop. Raises Invalid, which names the template, where it takes longer than `render_timeout_s`. `keep` is to be
        called with the prompt's `keep`.
        """
        unseal = self._sealer.of(conversation.client.tenant).open
        draft = PromptDraft(
            conversation, self.setup, window=self._window(), limit=limit, unseal=unseal, on_step=on_step
        )
        here, ledger = self._is_short(size, fresh), self.ledger
        if ledger is None:
            return await self._run_limited(draft.prompt, here=here)

        def begin() -> Prompt | list[bytes]:
            """The prompt, or the keys of turns that are to be fetched first."""
            return ledger.unfetched(draft.recall(ledger.remember)) or draft.prompt()

        made = await self._run_limited(begin, here=here)
        return made if isinstance(made, Prompt) else await self._prompt_of_fetched(draft, ledger, made, here=here)

    async def _prompt_of_fetched(
        self, draft: PromptDraft, ledger: LedgerReader, keys: Sequence[bytes], *, here: bool
    ) -> Prompt:
        """The prompt of turns that are being fetched. Mostly there are none, so it is made meanwhile without them."""

        async def make() -> Prompt:
            for _ in range(SEND_TICKS):
                await asyncio.sleep(0)
            return await self._run_limited(draft.prompt, here=here)

        def make_again() -> Prompt:
            draft.recall(ledger.remember)
            return draft.prompt()

        fetched, made = await asyncio.gather(ledger.fetch(keys), make(), return_exceptions=True)
        if isinstance(fetched, BaseException):
            raise fetched
        if fetched:
            return await self._run_limited(make_again, here=here)
        if isinstance(made, BaseException):
            raise made
        return made

    async def keep(self, keep: Callable[[], None]) -> None:
        """Calls `Prompt.keep`, when the turn's first token has probably been sent."""
        await asyncio.sleep(KEEP_DELAY_S)
        with suppress(TurnwireError):  # the template takes too long
            await self._run_limited(keep, here=True)

    async def _run_limited(self, make: Callable[[], T], *, here: bool) -> T:
        """Runs `make` on the event loop if `here`, else in a thread; where its template takes long, once more in a
        thread for that."""
        if here:
            try:
                with self.setup.encoder.limited(FAST_CHARS, SLOW_CHARS):
                    return self._limit(make, LOOP_S, time.thread_time)  # a busy machine is no slow template
            except TooLong:
                pass
        longest = self._render_timeout_s
        try:
            return await self.run(partial(self._limit, make, min(POOL_S, longest)))
        except TooLong:
            pass
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._slow_pool, partial(self._limit, make, longest))
        except TooLong:
            self._process.log.warning(
                "preprocessor.template_slow", template=self.setup.template.name, timeout_s=longest
            )
            raise self._slow_template() from None

    def _slow_template(self) -> Invalid:
        name, longest = self.setup.template.name, self._render_timeout_s
        return Invalid(
            f"the chat template {name} did not render this conversation within {longest:g} s", param="messages"
        )

    def _limit(self, make: Callable[[], T], seconds: float, clock: Callable[[], float] = time.monotonic) -> T:
        """Raises TooLong where the template is still at work after so many seconds."""
        end = clock() + seconds

        def check() -> None:
            if clock() > end:
                raise TooLong

        with self.setup.template.checked(check):
            return make()

    def _is_short(self, size: int, fresh: int) -> bool:
        """Whether a prompt takes a few milliseconds, for which other messages may wait."""
        setup = self.setup
        most = FAST_BYTES if setup.encoder.name == "fastokens" else SLOW_BYTES
        return (fresh if setup.history.off is None else size) <= most

    def ids(self, conversation: Conversation) -> Sequence[int]:
        """The ids of a conversation's prompt, without turns that only the bucket has. Thread-safe."""
        remember = self.ledger.remember if self.ledger is not None else None
        unseal = self._sealer.of(conversation.client.tenant).open
        make = partial(assemble, conversation, self.setup, limit=False, unseal=unseal, remember=remember)
        try:
            return self._limit(make, self._render_timeout_s).ids
        except TooLong:
            raise self._slow_template() from None

    async def audit(self, check: Check) -> None:
        """Runs a comparison of the audit in a thread, and logs a difference."""
        log = self._process.log
        try:
            found = await self.run(partial(self._limit, check, self._render_timeout_s))
        except (TurnwireError, TooLong) as error:
            log.warning("preprocessor.audit_failed", error=str(error) or "the chat template takes too long")
            return
        if found is not None:
            log.error("preprocessor.preparation_differed", found=found, remedy="turned off until the next start")

    async def run(self, work: Callable[[], T]) -> T:
        """Runs a function in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Ends the thread pool."""
        self._pool.shutdown(wait=False)
        self._slow_pool.shutdown(wait=False)

    def _window(self) -> int | None:
        """The widest context window among the workers; None where there is none yet."""
        workers = self._process.registry.able("worker", self.setup.card.name)
        return max((card.max_model_len for worker in workers for card in worker.models), default=None)


def preparation_counts(setup: ModelSetup) -> CountCollector:
    """`turnwire_prompts_*` for `/metrics`: how prompts were made."""
    history, encoder, audit = setup.history, setup.encoder, setup.audit
    return CountCollector(
        {
            "turnwire_prompts_in_parts_total": ("Prompts of which only the end was rendered.", lambda: history.parts),
            "turnwire_prompts_whole_total": ("Prompts rendered whole.", lambda: history.wholes),
            "turnwire_prompts_compared_total": ("Prompts compared with a whole rendering.", lambda: audit.checks),
            "turnwire_prompts_differed_total": ("Prompts that differed from it.", lambda: audit.differences),
            "turnwire_tokenizer_refusals_total": ("Texts that fastokens refused.", lambda: encoder.failures),
        }
    )

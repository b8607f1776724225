"""Decides where a prompt is made: on the event loop if that takes a few milliseconds, else in a
thread.

Short work in a thread would hold the interpreter's lock for most of its time, so that other
requests would wait all the same. The time of a prompt is estimated from its number of messages and
its bytes. A chat template is a program, though, and may take any time: one that takes much longer
than estimated is stopped and run again, few of them at once, so that it delays neither the event
loop nor the threads. A template may also write more text than it receives: a text that is too long
for the loop is made again in a thread.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from schemas.conversation import Conversation, ToolSpec
from schemas.errors import DEADLINE_PASSED, Invalid, TimedOut
from schemas.frames import PromptImage
from services.images.prompt_images import all_known
from services.ledger.recall import Recall
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import OnStep, Prompt, assemble, no_step
from services.runtime.long_work import LongWork
from services.runtime.process import Process
from services.runtime.storage.seal import Sealer

T = TypeVar("T")

LOOP_S = 0.02
"""Estimated time up to which a prompt is made on the event loop. With 0.01, four clients with
sessions at turn 100 get a fifth fewer requests per second: a thread waits for the interpreter's
lock."""
MESSAGE_S = 35e-6
"""Time to look up, adapt and render one message, with the slowest of the published templates."""
FAST_BYTE_S, SLOW_BYTE_S = 12e-9, 0.8e-6
"""Time to read, render and encode one byte of the request with fastokens and with tokenizers."""
LOOP_STOP_S = 0.03
"""CPU time after which a template is stopped on the event loop."""
THREAD_STOP_S = 1.0
"""CPU time after which a template is stopped in a thread."""
FAST_CHARS, SLOW_CHARS = 1_048_576, 32_768
"""Limit of characters that are encoded on the loop, with fastokens and with tokenizers: a template
may write more text than it receives."""
SLOW_TEMPLATES = 2
"""Limit of stopped templates that run again at the same time."""
CHECK_EVERY = 500
"""The end of one of this many prompts is encoded by both tokenizers: the trials at load cover many
cases, but not all."""
CHECK_CHARS = 32_768
"""Limit of that end. All of a large prompt would cost 0.1 s in a thread, on average 0.2 ms a
prompt."""


class _SlowTemplate(Exception):
    """The template ran longer than it may here."""


class _Unfetched(Exception):
    """Turns must be fetched from the ledger's bucket first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        super().__init__()
        self.keys = keys


def seconds_left(deadline: float | None, now: float) -> float | None:
    """Returns the time until the deadline of a request, None if it has none.

    Raises:
        TimedOut: the deadline has passed. The client no longer waits for the turn.
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
        self._pool = ThreadPoolExecutor(threads + SLOW_TEMPLATES, thread_name_prefix="prepare")
        self._slow = asyncio.Semaphore(SLOW_TEMPLATES)
        self._prompts = 0
        self._render_timeout_s = render_timeout_s

    async def prompt(
        self, conversation: Conversation, *, limit: bool, size: int, on_step: OnStep = no_step
    ) -> Prompt:
        """The prompt of a conversation. Turns that are only in the ledger's bucket are fetched
        first. `limit`, `on_step` and exceptions are those of `assemble`; `on_step` is called on any
        thread, again for repeated steps.

        `size`: bytes of the request. Raises Invalid, which names the template, where rendering
        takes longer than `render_timeout_s`.
        """
        ledger = self.ledger

        def look_up_fetched(conversation: Conversation, tools: list[ToolSpec]) -> Recall:
            assert ledger is not None
            recall = ledger.look_up(conversation, tools)
            if keys := ledger.unfetched(recall.missing):
                raise _Unfetched(keys)
            return recall

        make = partial(
            assemble,
            conversation,
            self.setup,
            window=self._window(),
            limit=limit,
            unseal=self._sealer.of(conversation.client.tenant).open,
            on_step=on_step,
        )
        expected_s = self._expected_s(conversation, size)
        if ledger is None:
            return await self._run_limited(make, expected_s)
        try:
            return await self._run_limited(partial(make, look_up=look_up_fetched), expected_s)
        except _Unfetched as unfetched:
            await ledger.fetch(unfetched.keys)
        return await self._run_limited(partial(make, look_up=ledger.look_up), expected_s)

    def ids(self, conversation: Conversation) -> tuple[Sequence[int], list[PromptImage]]:
        """Ids and images of a conversation's prompt, without fetching turns from the bucket.
        Thread-safe."""
        look_up = self.ledger.look_up if self.ledger is not None else None
        unseal = self._sealer.of(conversation.client.tenant).open
        make = partial(
            assemble, conversation, self.setup, limit=False, unseal=unseal, look_up=look_up
        )
        try:
            prompt = self._stopped(make, self._render_timeout_s, time.monotonic)
        except _SlowTemplate:
            raise self._slow_template() from None
        return prompt.ids, prompt.images

    def check(self, prompt: Prompt) -> None:
        """Counts a prompt, and starts a comparison of the tokenizers on it if one is due."""
        self._prompts += 1
        if self._prompts % CHECK_EVERY == 0:
            self._process.spawn(self._compare(prompt.text[-CHECK_CHARS:]), "compare tokenizers")

    async def _compare(self, text: str) -> None:
        """Compares the tokenizers in a thread, and logs a difference."""
        if (found := await self.run(partial(self.setup.encoder.find_difference, text))) is not None:
            self._process.log.error(
                "preprocessor.tokenizers_differ", found=found, remedy="off until the next start"
            )

    async def run(self, work: Callable[[], T]) -> T:
        """Runs a function in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Ends the thread pool."""
        self._pool.shutdown(wait=False)

    async def _run_limited(self, make: Callable[[], T], expected_s: float) -> T:
        """Runs `make` on the event loop or in a thread, by its expected time. Again in a thread if
        its text is too long for the loop, and if its template is stopped."""
        longest = self._render_timeout_s
        try:
            if expected_s <= LOOP_S:
                with suppress(LongWork), self.setup.encoder.limited(FAST_CHARS, SLOW_CHARS):
                    return self._stopped(
                        make, LOOP_STOP_S, time.thread_time
                    )  # a busy machine is not a slow template
            return await self.run(
                partial(self._stopped, make, min(THREAD_STOP_S, longest), time.thread_time)
            )
        except _SlowTemplate:
            pass
        try:
            async with self._slow:
                return await self.run(partial(self._stopped, make, longest, time.monotonic))
        except _SlowTemplate:
            self._process.log.warning(
                "preprocessor.template_slow", template=self.setup.template.name, timeout_s=longest
            )
            raise self._slow_template() from None

    def _expected_s(self, conversation: Conversation, size: int) -> float:
        if self.setup.images is not None and not all_known(conversation, self.setup.images):
            return THREAD_STOP_S
        byte_s = FAST_BYTE_S if self.setup.encoder.name == "fastokens" else SLOW_BYTE_S
        return len(conversation.messages) * MESSAGE_S + size * byte_s

    def _stopped(self, make: Callable[[], T], seconds: float, clock: Callable[[], float]) -> T:
        """Runs `make`. Raises _SlowTemplate where the template still runs after `seconds` by
        `clock`."""
        end = clock() + seconds

        def check() -> None:
            if clock() > end:
                raise _SlowTemplate

        with self.setup.template.checked(check):
            return make()

    def _slow_template(self) -> Invalid:
        name, longest = self.setup.template.name, self._render_timeout_s
        return Invalid(
            f"the chat template {name} did not render this conversation within {longest:g} s",
            param="messages",
        )

    def _window(self) -> int | None:
        """The widest context window among the workers; None where there is none yet."""
        workers = self._process.registry.able("worker", self.setup.card.name)
        return max(
            (card.max_model_len for worker in workers for card in worker.models), default=None
        )

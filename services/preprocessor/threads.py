"""Decides where a prompt is made: on the event loop if that takes a few milliseconds, else in a
thread.

Short work in a thread would hold the interpreter's lock for most of its time, so that other
requests would wait all the same. The time of a prompt is estimated from its number of messages and
its bytes. A chat template is a program, though, and may take any time: one that takes much longer
than estimated is stopped and run again, few of them at once, so that it delays neither the event
loop nor the threads. A template may also write more text than it receives, and data may spell many
control tokens, which are all marked. Work that is too long for the loop is repeated in a thread.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias, TypeVar, TypeVarTuple

from schemas.conversation import Conversation
from schemas.errors import Invalid
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_images import all_known
from services.runtime.long_work import LongWork, on_loop
from services.runtime.observability.telemetry import FilteringBoundLogger

A = TypeVarTuple("A")
T = TypeVar("T")
Clock: TypeAlias = Callable[[], float]
"""Returns a time in seconds."""

LOOP_S = 0.02
"""Estimated time up to which a prompt is made on the event loop. With 0.01, four clients with
sessions at turn 100 get a fifth fewer requests per second: a thread waits for the interpreter's
lock."""
MESSAGE_S = 35e-6
"""Time to look up, adapt and render one message, with the slowest of the published templates."""
FAST_BYTE_S = 12e-9
SLOW_BYTE_S = 0.8e-6
"""Time to read, render and encode one byte of the request with fastokens and with tokenizers."""
LOOP_STOP_S = 0.03
"""CPU time after which a template, and the marking of data, are stopped on the event loop."""
THREAD_STOP_S = 1.0
"""CPU time after which a template is stopped in a thread."""
FAST_CHARS = 1_048_576
SLOW_CHARS = 32_768
"""Limit of characters that are encoded on the loop, with fastokens and with tokenizers: a template
may write more text than it receives."""
SLOW_TEMPLATES = 2
"""Limit of stopped templates that run again at the same time."""


class _SlowTemplate(Exception):
    """The template ran longer than it may here."""


def expected_s(setup: ModelSetup, conversation: Conversation, size: int) -> float:
    """Estimates the time to make a conversation's prompt, in seconds. `size`: bytes of the
    request."""
    if setup.images is not None and not all_known(conversation, setup.images):
        return THREAD_STOP_S
    byte_s = FAST_BYTE_S if setup.encoder.name == "fastokens" else SLOW_BYTE_S
    return len(conversation.messages) * MESSAGE_S + size * byte_s


class PromptThreads:
    """The event loop and the threads in which one model's prompts are made."""

    def __init__(
        self, setup: ModelSetup, log: FilteringBoundLogger, threads: int, render_timeout_s: float
    ) -> None:
        """`render_timeout_s`: the time that the chat template may take for one prompt."""
        self._setup = setup
        self._log = log
        self._pool = ThreadPoolExecutor(threads + SLOW_TEMPLATES, thread_name_prefix="prepare")
        self._slow = asyncio.Semaphore(SLOW_TEMPLATES)
        self._render_timeout_s = render_timeout_s

    async def run_limited(self, expected_s: float, work: Callable[[*A], T], *args: *A) -> T:
        """Runs a part of the work for a prompt, on the event loop or in a thread, by the expected
        time of the prompt. Again in a thread if its text is too long for the loop, and if its
        template is stopped: so `work` may run three times. Raises Invalid, which names the
        template, where rendering takes longer than `render_timeout_s`."""
        try:
            if expected_s <= LOOP_S:
                with suppress(LongWork):
                    return self._on_loop(work, *args)
            return await self._in_thread(work, *args)
        except _SlowTemplate:
            return await self._run_again(work, *args)

    def run_here(self, work: Callable[[*A], T], *args: *A) -> T:
        """Runs work for a prompt in this thread, which is one of the pool. Raises as
        `run_limited`."""
        try:
            return self._run_within(self._render_timeout_s, time.monotonic, work, *args)
        except _SlowTemplate:
            raise self._too_slow() from None

    async def run(self, work: Callable[[*A], T], *args: *A) -> T:
        """Runs a function in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        """Ends the thread pool."""
        self._pool.shutdown(wait=False)

    def _on_loop(self, work: Callable[[*A], T], *args: *A) -> T:
        # By CPU time: a busy machine is not a slow template.
        with on_loop(LOOP_STOP_S), self._setup.encoder.limited(FAST_CHARS, SLOW_CHARS):
            return self._run_within(LOOP_STOP_S, time.thread_time, work, *args)

    async def _in_thread(self, work: Callable[[*A], T], *args: *A) -> T:
        seconds = min(THREAD_STOP_S, self._render_timeout_s)
        return await self.run(self._run_within, seconds, time.thread_time, work, *args)

    async def _run_again(self, work: Callable[[*A], T], *args: *A) -> T:
        """Runs work with a slow template, few of it at once."""
        try:
            async with self._slow:
                seconds = self._render_timeout_s
                return await self.run(self._run_within, seconds, time.monotonic, work, *args)
        except _SlowTemplate:
            self._log.warning(
                "preprocessor.template_slow",
                template=self._setup.template.name,
                timeout_s=self._render_timeout_s,
            )
            raise self._too_slow() from None

    def _run_within(self, seconds: float, clock: Clock, work: Callable[[*A], T], *args: *A) -> T:
        """Runs work. Raises _SlowTemplate where the template still runs after `seconds` by
        `clock`."""
        end = clock() + seconds

        def check() -> None:
            if clock() > end:
                raise _SlowTemplate

        with self._setup.template.renderer.checked(check):
            return work(*args)

    def _too_slow(self) -> Invalid:
        template = self._setup.template.name
        return Invalid(
            f"the chat template {template} did not render this conversation "
            f"within {self._render_timeout_s:g} s",
            param="messages",
        )

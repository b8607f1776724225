"""Background responses: turns that run without their client, and can be looked at, followed and cancelled meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from msgspec import Raw
from structlog.typing import FilteringBoundLogger

from schemas.errors import ErrorInfo, ErrorKind, RateLimited, TurnwireError, Unavailable
from services.frontend.dialects.base import Reply
from services.frontend.dialects.responses.document import Status
from services.frontend.dialects.responses.stream import ResponsesStream, frame, payloads
from services.frontend.exchange import Exchange
from services.frontend.record import TurnRecord
from services.frontend.responses.intake import Asked
from services.frontend.responses.record import ENDED, EventPacker, StoredResponse
from services.frontend.responses.runner import NOTHING, Runner
from services.frontend.responses.store import ResponseStore

RETRY_AFTER_S = 5.0


class Job:
    """A background response that has not ended."""

    def __init__(self, asked: Asked, reply: Reply) -> None:
        self.asked = asked
        self.reply = reply
        self.renderer: ResponsesStream = asked.ask.renderer(reply)
        self.payloads: list[bytes] = []
        """The events so far; each is at the place of its sequence number."""
        self.ended: StoredResponse | None = None
        self.cancelled = False
        self.running = False
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def document(self) -> dict[str, object]:
        """The Response object as it stands."""
        if self.payloads:
            return self.renderer.response()
        return self.asked.ask.document(self.reply, "in_progress" if self.running else "queued")

    def emit(self, rendered: bytes) -> None:
        """The next part of its stream."""
        self.payloads += payloads(rendered)
        self.wake()

    def wake(self) -> None:
        """Something changed: followers look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: int) -> AsyncIterator[list[bytes]]:
        """The events behind the one with number `after` (-1: all), as they come, until the response has ended."""
        at = after + 1
        while True:
            changed, fresh = self._changed, self.payloads[at:]
            if fresh:
                at += len(fresh)
                yield fresh
            elif self.ended is not None:
                return
            else:
                await changed.wait()

    async def wait(self) -> StoredResponse:
        """The response when it has ended."""
        async for _ in self.follow(-1):
            pass
        if self.ended is None:  # pragma: no cover - `follow` ends for no other reason
            raise RuntimeError("a job ended without a record")
        return self.ended


class Background:
    """The background responses of this process. At most `slots` run, and as many again wait."""

    def __init__(
        self, runner: Runner, store: ResponseStore, log: FilteringBoundLogger, *, slots: int, owner: str
    ) -> None:
        self._runner = runner
        self._store = store
        self._log = log
        self._limit = 2 * slots
        self._slots = asyncio.Semaphore(slots)
        self._owner = owner
        self._jobs: dict[str, Job] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, asked: Asked, reply: Reply, exchange: Exchange) -> Job:
        """Takes a response in. Raises RateLimited where as many wait as may, or the caller has too many requests open,
        and Unavailable while the server shuts down."""
        if self._draining:
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        if len(self._jobs) >= self._limit:
            raise RateLimited(
                f"There are {self._limit} background responses at work or waiting. Please try again later.",
                retry_after_s=RETRY_AFTER_S,
            )
        job = Job(asked, reply)
        allowance = contextlib.ExitStack()
        record = self._runner.record()
        allowance.enter_context(exchange.turn(record))
        id = str(job.document()["id"])
        self._jobs[id] = job
        self._keep(job, owner=self._owner)
        job.task = asyncio.create_task(self._work(job, exchange, record), name=f"background {id}")

        def ended(_task: asyncio.Task[None]) -> None:
            allowance.close()
            self._ended(id, job)

        # Not in the task itself: one that is cancelled before its first step never runs.
        job.task.add_done_callback(ended)
        return job

    def find(self, id: str, tenant: str | None) -> Job | None:
        """A response that has not ended, if this tenant has it."""
        job = self._jobs.get(id)
        return job if job is not None and job.asked.tenant == tenant else None

    def cancel(self, id: str) -> None:
        """Cancels a response if it is here and has not ended. Whose it is the caller has made sure of."""
        job = self._jobs.get(id)
        if job is not None and job.task is not None and not job.cancelled:
            job.cancelled = True
            job.task.cancel()

    async def drain(self) -> None:
        """Takes nothing new in, and returns when the last response has ended. Cancelled, it ends those that are left,
        each with an error that is kept."""
        self._draining = True
        try:
            await asyncio.gather(*self._tasks(), return_exceptions=True)
        except asyncio.CancelledError:
            await self.end()
            raise

    async def end(self) -> None:
        """Ends what has not ended by itself, each with an error that is kept."""
        self._draining = True
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tasks(self) -> "list[asyncio.Task[None]]":
        return [job.task for job in self._jobs.values() if job.task is not None]

    async def _work(self, job: Job, exchange: Exchange, record: TurnRecord) -> None:
        try:
            async with self._slots:
                job.running = True
                self._keep(job, owner=self._owner)
                await self._runner.run(
                    job.asked.ask, job.renderer, exchange, record, emit=job.emit, on_end=lambda: None
                )
        except TurnwireError as error:
            self._fail(job, error.info)
        except Exception:
            self._log.exception("responses.background_failed", request=exchange.request_id)
            self._fail(job, ErrorInfo(ErrorKind.ENGINE, "Internal server error"))

    def _ended(self, id: str, job: Job) -> None:
        """Whatever happened, the response ends in a state that is kept."""
        if job.task is not None and job.task.cancelled() and not job.cancelled:
            self._fail(job, Unavailable("This server was shut down.").info)
        running = job.document()["status"] not in ENDED
        if running and job.payloads:
            job.emit(job.renderer.break_off())
        job.ended = self._keep(job, status="cancelled" if running else None)
        del self._jobs[id]
        job.wake()

    def _fail(self, job: Job, info: ErrorInfo) -> None:
        if not job.payloads:
            job.emit(job.renderer.start([NOTHING]))
        job.emit(job.renderer.error(info))

    def _keep(self, job: Job, *, status: Status | None = None, owner: str = "") -> StoredResponse:
        events = EventPacker()
        for payload in () if owner else job.payloads:
            events.add(frame(payload))
        if job.payloads:
            record = job.asked.record(
                job.renderer, created=job.reply.created, events=events.packed(), status=status, owner=owner
            )
        else:
            document = job.document() if status is None else job.asked.ask.document(job.reply, "cancelled")
            output: list[Raw] = []
            record = job.asked.of_document(document, output, created=job.reply.created, owner=owner)
        self._store.put(record)
        return record

"""Runs background responses: turns without a connected client, which clients poll, follow and
cancel.

`send_events` sends the events of a running or stored response: GET /v1/responses/{id}?stream=true.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from functools import partial

from aiohttp import web
from typing_extensions import override

from schemas.errors import ErrorInfo, RateLimited, TurnwireError, Unavailable, unexpected
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.render.events import DONE, KEEPALIVE, payloads, sse_frame
from services.frontend.apis.responses.state.keep import AcceptedRequest, unpack_events
from services.frontend.apis.responses.state.record import ENDED, StoredResponse
from services.frontend.apis.responses.state.running import NOT_STARTED, RunningResponse
from services.frontend.apis.responses.state.store import MemoryStore
from services.frontend.http.sse import EventStream, SseWriter
from services.frontend.turns.turn_service import RequestModel, TurnService
from services.runtime.config import FrontendConfig

RETRY_AFTER_S = 5.0
POLL_S = 0.5
"""The pause between two reads of a response that runs in another process."""
Events = AsyncIterator[Sequence[bytes]]


class Job(RunningResponse):
    """A background response that has not ended."""

    def __init__(self, accepted: AcceptedRequest, model: RequestModel) -> None:
        super().__init__(accepted, model)
        self.payloads: list[bytes] = []
        """The events so far, each at the index of its sequence number."""
        self.ended: StoredResponse | None = None
        self.cancelled = False
        self.running = False
        self.task: asyncio.Task[None]
        """Set when the job starts."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<background {self.id} {self.status}, {len(self.payloads)} events>"

    @property
    def status(self) -> wire.Status:
        """The status that clients see."""
        state = self.recorder.stream.state
        return state.status if state.ended or self.running else "queued"

    def document(self) -> wire.Answer:
        """The Response object at this moment."""
        return self.recorder.stream.state.document(self.status)

    @override
    def emit(self, rendered: bytes) -> None:
        """Adds the next part of the response's stream."""
        self.payloads += payloads(rendered)
        self.wake()

    def wake(self) -> None:
        """Wakes the followers after a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: int) -> AsyncIterator[list[bytes]]:
        """Yields the events after number `after` (-1: all) as they come, until the response has
        ended."""
        at = after + 1
        while True:
            changed = self._changed
            fresh = self.payloads[at:]
            if fresh:
                at += len(fresh)
                yield fresh
            elif self.ended is not None:
                return
            else:
                await changed.wait()

    async def wait(self) -> StoredResponse:
        """Waits until the response has ended, and returns its record."""
        while self.ended is None:
            await self._changed.wait()
        return self.ended


class Background:
    """The background responses of this process. At most `max_background` run, and at most as many
    wait."""

    def __init__(self, store: MemoryStore, turns: TurnService) -> None:
        self._store = store
        self._turns = turns
        slots = self._turns.config.max_background
        self._limit = 2 * slots
        self._slots = asyncio.Semaphore(slots)
        self._jobs: dict[str, Job] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, accepted: AcceptedRequest, model: RequestModel) -> Job:
        """Starts a response. Raises RateLimited where too many wait or the caller has too many
        requests open, Unavailable while the server shuts down, and NotFound where the model is not
        served."""
        if self._draining:
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        if len(self._jobs) >= self._limit:
            raise RateLimited(
                f"There are {self._limit} background responses at work or waiting. "
                "Please try again later.",
                retry_after_s=RETRY_AFTER_S,
            )
        job = Job(accepted, model)
        open_request = ExitStack()
        open_request.enter_context(model.context.open_request())
        self._jobs[job.id] = job
        self._keep(job, owner=self._store.owner)
        job.task = asyncio.create_task(self._work(job), name=f"background {job.id}")
        # A callback, not the task itself: a task that is cancelled before its first step never
        # runs.
        job.task.add_done_callback(partial(self._end, job, open_request))
        return job

    def find(self, id: str, tenant: str | None) -> Job | None:
        """The tenant's response with this id, if it has not ended."""
        job = self._jobs.get(id)
        return job if job is not None and job.accepted.tenant == tenant else None

    def cancel(self, id: str) -> None:
        """Cancels a response if it runs here. Callers check its tenant."""
        job = self._jobs.get(id)
        if job is not None and not job.cancelled:
            job.cancelled = True
            job.task.cancel()

    async def drain(self) -> None:
        """Accepts nothing new, and returns when the last response has ended. When cancelled, ends
        the others."""
        self._draining = True
        try:
            await asyncio.gather(*(job.task for job in self._jobs.values()), return_exceptions=True)
        except asyncio.CancelledError:
            await self.end()
            raise

    async def end(self) -> None:
        """Ends the running responses, each with an error that is stored."""
        for job in self._jobs.values():
            job.task.cancel()
        await self.drain()

    async def _work(self, job: Job) -> None:
        try:
            async with self._slots:
                job.running = True
                self._keep(job, owner=self._store.owner)
                await job.make()
        except TurnwireError as error:
            self._fail(job, error.info)
        except Exception as error:
            # Nothing awaits this task: an unexpected error must be logged and end the response.
            self._turns.log.exception("responses.background_failed", request=job.request_id)
            self._fail(job, unexpected(error))

    def _end(self, job: Job, open_request: ExitStack, _task: "asyncio.Task[None]") -> None:
        """Ends a response, whether its task returned, failed or was cancelled."""
        open_request.close()
        if job.task.cancelled() and not job.cancelled:
            self._fail(job, Unavailable("This server was shut down.").info)
        is_unfinished = job.status not in ENDED
        if is_unfinished and job.payloads:
            job.emit(job.recorder.break_off())
        job.ended = self._keep(job, status="cancelled" if is_unfinished else None)
        del self._jobs[job.id]
        job.wake()

    def _fail(self, job: Job, info: ErrorInfo) -> None:
        if not job.payloads:
            job.emit(job.recorder.start([NOT_STARTED]))
        job.emit(job.recorder.error(info))

    def _keep(
        self, job: Job, *, status: wire.Status | None = None, owner: str = ""
    ) -> StoredResponse:
        recording = b"" if owner else job.recorder.recording()
        record = job.accepted.record(
            job.recorder.stream, recording, status=status or job.status, owner=owner
        )
        self._store.put(record)
        return record


async def send_events(
    request: web.Request, events: Events, config: FrontendConfig
) -> web.StreamResponse:
    """Sends payloads as a stream, as they come. A client that hangs up or does not read ends only
    this stream."""
    response = EventStream(request)
    writer = SseWriter(request, response, config, KEEPALIVE, on_slow=lambda: None)
    writer.begin(b"")

    async def feed() -> None:
        try:
            async for batch in events:
                writer.write(b"".join(map(sse_frame, batch)))
            writer.write(DONE)
        finally:
            writer.close()

    feeding = asyncio.create_task(feed())
    try:
        await writer.run()
        await feeding
    finally:
        feeding.cancel()
    return response


async def stored_events(store: MemoryStore, record: StoredResponse, after: int) -> Events:
    """Yields the events after number `after`; if the response runs in another process, once it has
    ended."""
    latest: StoredResponse | None = record
    while latest is not None and not latest.ended:
        await asyncio.sleep(POLL_S)
        latest = await store.get(record.id, record.tenant)
    if latest is not None and latest.events:
        yield payloads(unpack_events(latest.events))[after + 1 :]

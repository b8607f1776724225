"""Runs background responses: turns without a connected client, which clients poll, follow and
cancel."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

from aiohttp import web
from typing_extensions import override

from schemas.errors import (
    INTERNAL,
    ErrorInfo,
    RateLimited,
    TurnwireError,
    Unavailable,
    raised,
    unexpected,
)
from services.frontend.apis.responses import wire_answers
from services.frontend.apis.responses.render.events import KEEPALIVE, payloads, sse_frame
from services.frontend.apis.responses.state.accepted_request import AcceptedRequest
from services.frontend.apis.responses.state.detached import DetachedResponse
from services.frontend.apis.responses.state.recording import unpack_events
from services.frontend.apis.shared.openai.chunks import DONE
from services.frontend.http.auth import Callers
from services.frontend.http.sse import EventStream, SseWriter
from services.frontend.stored.memory import MemoryStore
from services.frontend.stored.record import ENDED, StoredResponse
from services.frontend.turns.turn_service import ModelAccess, TurnService
from services.runtime.config.frontend import FrontendConfig

RETRY_AFTER_S = 5.0
POLL_S = 0.5
"""The pause between two reads of a response that runs in another process."""
CANCEL_POLLS = 20
CANCEL_POLL_S = 0.1
"""How often a response is read while another process cancels it, and the pause before each read."""
EventPayloads: TypeAlias = AsyncIterator[Sequence[bytes]]
"""Payloads of events, in batches, as they come."""


class Job(DetachedResponse):
    """A background response that has not ended."""

    def __init__(self, accepted: AcceptedRequest, model: ModelAccess) -> None:
        super().__init__(accepted, model)
        self.payloads: list[bytes] = []
        """The events so far, each at the index of its sequence number."""
        self.ended = False
        self.record: StoredResponse | None = None
        """Set at the end, unless an error prevents it."""
        self.cancelled = False
        self.deleted = False
        """Another frontend has deleted it: it is not stored."""
        self.running = False
        self.task: asyncio.Task[None]
        """Set when the job starts."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<background {self.id} {self.status}, {len(self.payloads)} events>"

    @property
    def status(self) -> wire_answers.Status:
        """The status that clients see."""
        state = self.recorder.stream.state
        return state.status if state.ended or self.running else "queued"

    def document(self) -> wire_answers.ResponsesAnswer:
        """The Response object at this moment."""
        return self.recorder.stream.state.document(self.status)

    def renew_caller(self, callers: Callers) -> None:
        """Gives it its caller's rights of now. Raises as `Callers.renew`."""
        context = self._model.context
        context.caller = callers.renew(context.caller)

    @override
    def emit(self, rendered: bytes) -> None:
        """Adds the next part of the response's stream."""
        self.payloads += payloads(rendered)
        self.wake()

    def fail(self, error: ErrorInfo) -> None:
        """Ends the response with an error."""
        if not self.payloads:
            self.emit_opening()
        self.emit(self.recorder.error(error))

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
            elif self.ended:
                return
            else:
                await changed.wait()

    async def wait(self) -> StoredResponse:
        """Waits until the response has ended, and returns its record. Raises EngineFailed if
        it could not be made."""
        while not self.ended:
            await self._changed.wait()
        if self.record is None:
            raise raised(INTERNAL)
        return self.record


class Background:
    """The background responses of this process. At most `max_background` run, and at most as many
    wait."""

    def __init__(self, store: MemoryStore, turns: TurnService, callers: Callers) -> None:
        self._store = store
        self._turns = turns
        self._callers = callers
        slots = self._turns.config.max_background
        self._limit = 2 * slots
        self._slots = asyncio.Semaphore(slots)
        self._jobs: dict[str, Job] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, accepted: AcceptedRequest, model: ModelAccess, open_request: ExitStack) -> Job:
        """Starts a response, which takes over the caller's `open_request`. Raises RateLimited where
        too many wait, Unavailable while the server shuts down, and NotFound where the model is not
        served."""
        if self._draining:
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        if len(self._jobs) >= self._limit:
            raise RateLimited(
                f"There are {self._limit} background responses at work or waiting. "
                "Please try again later.",
                "background",
                retry_after_s=RETRY_AFTER_S,
            )
        job = Job(accepted, model)
        self._jobs[job.id] = job
        self._keep_running(job)
        job.task = asyncio.create_task(self._work(job), name=f"background {job.id}")
        # A callback, not the task itself: a task that is cancelled before its first step never
        # runs.
        job.task.add_done_callback(partial(self._end, job, open_request.pop_all()))
        return job

    def find(self, id: str, tenant: str | None) -> Job | None:
        """The tenant's response with this id, if it has not ended."""
        job = self._jobs.get(id)
        if job is None or job.accepted.tenant != tenant:
            return None
        return job

    def cancel(self, id: str) -> None:
        """Cancels a response if it runs here. Callers check its tenant."""
        job = self._jobs.get(id)
        if job is not None and not job.cancelled:
            job.cancelled = True
            job.task.cancel()

    def delete(self, id: str) -> None:
        """Cancels a response that another frontend has deleted, if it runs here. It is not stored
        again."""
        job = self._jobs.get(id)
        if job is not None:
            job.deleted = True
            self.cancel(id)

    async def drain(self) -> None:
        """Accepts nothing new, and returns when the last response has ended. When cancelled, ends
        the others."""
        self._draining = True
        try:
            tasks = [job.task for job in self._jobs.values()]
            await asyncio.gather(*tasks, return_exceptions=True)
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
                job.renew_caller(self._callers)
                job.running = True
                self._keep_running(job)
                await job.make()
        except TurnwireError as error:
            job.fail(error.info)
        except Exception as error:
            # Nothing awaits this task: an unexpected error must be logged and end the response.
            self._turns.log.exception("responses.background_failed", request=job.request_id)
            job.fail(unexpected(error))

    def _end(self, job: Job, open_request: ExitStack, _task: "asyncio.Task[None]") -> None:
        """Ends a response, whether its task returned, failed or was cancelled."""
        try:
            with open_request:
                self._store_end(job)
        except Exception:
            # Nothing awaits this callback, but clients wait for the end.
            self._turns.log.exception("responses.background_failed", request=job.request_id)
            self._store.forget(job.id)  # its last record says that it runs
        finally:
            job.ended = True
            del self._jobs[job.id]
            job.wake()

    def _store_end(self, job: Job) -> None:
        if job.task.cancelled() and not job.cancelled:
            job.fail(Unavailable("This server was shut down.").info)
        status = job.status
        if status not in ENDED:
            status = "cancelled"
            if job.payloads:
                job.emit(job.recorder.break_off())

        recording = job.recorder.recording()
        job.record = job.accepted.record(job.recorder.stream, recording, status=status)
        if not job.deleted:
            self._store.put(job.record)

    def _keep_running(self, job: Job) -> None:
        """Stores the state of a response that has not ended, so that clients can poll it."""
        record = job.accepted.record(
            job.recorder.stream, status=job.status, owner=self._store.owner
        )
        self._store.put(record)


async def send_events(
    http: web.Request, events: EventPayloads, config: FrontendConfig
) -> web.StreamResponse:
    """Sends events as a stream. A client that hangs up or does not read ends only this stream."""
    response = EventStream(http)
    writer = SseWriter(http, response, config, KEEPALIVE, on_slow=lambda: None)
    writer.begin(b"")
    feeding = asyncio.create_task(_feed(writer, events))
    try:
        await writer.run()
        await feeding
    finally:
        feeding.cancel()
    return response


async def stored_events(store: MemoryStore, record: StoredResponse, after: int) -> EventPayloads:
    """Yields the events after number `after`; if the response runs in another process, once it has
    ended."""
    latest: StoredResponse | None = record
    while latest is not None and not latest.ended:
        await asyncio.sleep(POLL_S)
        latest = await store.get(StoredResponse, record.id, record.tenant)
    if latest is not None and latest.events:
        first = after + 1
        yield payloads(unpack_events(latest.events))[first:]


async def wait_for_end(store: MemoryStore, record: StoredResponse) -> StoredResponse:
    """Waits for a moment until a response has ended that another process cancels."""
    for _ in range(CANCEL_POLLS):
        await asyncio.sleep(CANCEL_POLL_S)
        record = await store.get(StoredResponse, record.id, record.tenant) or record
        if record.ended:
            break
    return record


async def _feed(writer: SseWriter, events: EventPayloads) -> None:
    try:
        async for batch in events:
            # A batch may be a whole stream, which is more than a writer keeps for its client.
            await writer.write_all(b"".join(map(sse_frame, batch)))
        await writer.write_all(DONE)
    finally:
        writer.close()

"""Serves message threads: reads what a thread holds, lets each reply be continued once, and stores
replies."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from typing_extensions import override

from schemas.errors import ErrorInfo, Invalid
from schemas.events import Finish, Prepared, TurnEvent
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.document import MessageCollector
from services.frontend.apis.messages.message_renderer import MessageRenderer
from services.frontend.apis.messages.request import MessagesRequest
from services.frontend.apis.messages.thread_history import PREVIOUS, ThreadTurn, not_found
from services.frontend.http.request_context import RequestContext
from services.frontend.stored.memory import MemoryStore
from services.frontend.stored.record import StoredReply
from services.frontend.turns.interfaces import Collector, ParsedRequest, Renderer, RenderInfo
from services.runtime.observability.telemetry import FilteringBoundLogger

MAX_REPLIES = 10_000
"""The most replies of one thread. Agents make one for each tool call."""


class Threads:
    """The message threads of a deployment."""

    def __init__(self, store: MemoryStore, log: FilteringBoundLogger) -> None:
        self._store = store
        self._log = log

    async def replies(
        self, thread: wire.Thread | None, context: RequestContext
    ) -> list[StoredReply]:
        """The replies of the thread that a request continues, oldest first; empty if it continues
        none.

        Raises NotFound where one of them is not stored, Invalid where they are more than
        `MAX_REPLIES`, TooLarge where they have more bytes than a body may, TurnwireError where the
        store does not answer.
        """
        if not isinstance(thread, wire.ThreadContinue):
            return []
        newest_first: list[StoredReply] = []
        size = 0
        next_id: str | None = thread.previous_message_id
        while next_id is not None:
            reply = await self._store.get(StoredReply, next_id, context.owner)
            if reply is None:
                raise not_found()
            if len(newest_first) == MAX_REPLIES:
                raise Invalid(f"The thread has more than {MAX_REPLIES} replies.", param=PREVIOUS)
            size += reply.size
            self._store.limits.check_chain(size, PREVIOUS)
            newest_first.append(reply)
            next_id = reply.previous
        return newest_first[::-1]

    @asynccontextmanager
    async def continuing(self, turn: ThreadTurn | None, answer_id: str) -> AsyncIterator[None]:
        """While entered, no other request may continue the reply that this one continues; nor
        later, if its answer was stored.

        Raises Invalid on entering where another request has that right, TurnwireError where the
        store does not answer.
        """
        previous = None if turn is None else turn.previous
        if previous is None:
            yield
            return
        holder = await self._store.claim(previous, answer_id)
        if holder != answer_id:
            raise await self._conflict(holder, previous.tenant)
        try:
            yield
        finally:
            if self._store.find(StoredReply, answer_id, previous.tenant) is None:
                self._store.release(previous, answer_id)

    def stored(self, request: MessagesRequest, context: RequestContext) -> ParsedRequest:
        """The request, with an answer that is also stored if it is the reply of a thread."""
        if request.thread is None:
            return request
        return ThreadRequest(
            conversation=request.conversation,
            stream=request.stream,
            notes=request.notes,
            request=request,
            turn=request.thread,
            threads=self,
            context=context,
        )

    def keep(self, turn: ThreadTurn, reply: MessageCollector, context: RequestContext) -> None:
        """Stores a whole reply. Never raises: the client must still get it."""
        try:
            record = turn.record(
                reply.message(), created=reply.answer.created, tenant=context.owner
            )
            self._store.put(record)
        except Exception:
            self._log.exception("threads.not_stored", request=context.request_id)

    async def _conflict(self, holder: str, tenant: str | None) -> Invalid:
        """The error for a reply that another one continues. `holder`: its id."""
        if await self._store.get(StoredReply, holder, tenant) is None:
            return Invalid(
                "Another request is already continuing the requested `previous_message_id`.",
                param=PREVIOUS,
                code="thread_continue_in_flight",
            )
        return Invalid(
            "The requested `previous_message_id` has already been continued. Each response `id` "
            "may be continued at most once; continue from the Thread's most recent response `id`.",
            param=PREVIOUS,
            code="thread_already_continued",
        )


class ThreadRequest(ParsedRequest, frozen=True, kw_only=True):
    """A request of a thread. Its reply is stored before the client has the end, because its next
    request may continue the reply."""

    request: MessagesRequest
    turn: ThreadTurn
    threads: Threads
    context: RequestContext

    @override
    def renderer(self, answer: RenderInfo) -> Renderer:
        stream = self.request.renderer(answer)
        return ReplyStream(stream, self.request.collector(answer), self)

    @override
    def collector(self, answer: RenderInfo) -> Collector:
        return ReplyCollector(self.request.collector(answer), self)

    def keep(self, reply: MessageCollector) -> None:
        """Stores a whole reply, as `Threads.keep`."""
        self.threads.keep(self.turn, reply, self.context)


class ReplyCollector(Collector):
    """Collects a reply, and stores it before it becomes a document."""

    def __init__(self, collector: MessageCollector, request: ThreadRequest) -> None:
        self._collector = collector
        self._request = request

    @override
    def start(self, prepared: Sequence[Prepared]) -> None:
        self._collector.start(prepared)

    @override
    def add(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        self._collector.add(events)

    @override
    def body(self) -> bytes:
        self._request.keep(self._collector)
        return self._collector.body()


class ReplyStream(Renderer):
    """Renders the stream of a reply, and stores the reply when its turn has ended."""

    def __init__(
        self, stream: MessageRenderer, collector: MessageCollector, request: ThreadRequest
    ) -> None:
        self._stream = stream
        self._collector = collector
        self._request = request
        self._events: list[TurnEvent] = []

    @override
    def start(self, prepared: Sequence[Prepared]) -> bytes:
        self._collector.start(prepared)
        return self._stream.start(prepared)

    @override
    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        self._events += events
        if isinstance(events[-1], Finish):
            self._collector.add(self._events)
            self._request.keep(self._collector)
        return self._stream.render(events, choice)

    @override
    def error(self, info: ErrorInfo) -> bytes:
        return self._stream.error(info)

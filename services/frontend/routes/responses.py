"""`/v1/responses`: responses made, looked at, followed, cancelled, deleted, counted and compacted (apis.md B.1)."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from msgspec import Raw
from msgspec.structs import replace

from schemas.errors import ContextOverflow, Invalid, NotFound, TurnwireError, raised
from services.frontend.dialects.base import Ask, Collector, Renderer
from services.frontend.dialects.responses.ask import ResponsesAsk
from services.frontend.dialects.responses.errors import own_words
from services.frontend.dialects.responses.request import ResponsesRequest
from services.frontend.dialects.responses.response import ResponsesCollector
from services.frontend.exchange import EXCHANGE
from services.frontend.limits import apart, read_body
from services.frontend.responses.compaction import CompactAsk
from services.frontend.responses.follow import distant_events, send_events, stored_events
from services.frontend.responses.history import items_of
from services.frontend.responses.intake import Asked
from services.frontend.responses.listing import integer, listed, page_of
from services.frontend.responses.record import StoredResponse, bytes_of
from services.frontend.responses.recording import RecordingAsk, RecordingStream
from services.frontend.responses.server import ResponsesServer
from services.frontend.responses.truncation import shortened

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CANCEL_LOOKS = 20
CANCEL_LOOK_S = 0.1
"""How often, and how far apart, a response that another process cancels is looked at."""


class ResponseRoutes:
    """The handlers."""

    def __init__(self, responses: ResponsesServer) -> None:
        self._responses = responses

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Registers every path."""
        router.add_post("/v1/responses", _in_own_words(self.create))
        router.add_get("/v1/responses", self._responses.connections.handle, allow_head=False)
        router.add_post("/v1/responses/compact", _in_own_words(self.compact))
        router.add_post("/v1/responses/input_tokens", _in_own_words(self.input_tokens))
        router.add_get("/v1/responses/{id}", self.retrieve, allow_head=False)
        router.add_delete("/v1/responses/{id}", self.delete)
        router.add_post("/v1/responses/{id}/cancel", self.cancel)
        router.add_get("/v1/responses/{id}/input_items", self.input_items, allow_head=False)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """One response: whole, as a stream, or in the background."""
        parsed = await self._parsed(request)
        if parsed.background:
            return await self._start(request, parsed)
        asked: Asked | None = None

        async def read() -> Ask:
            nonlocal asked, parsed
            asked = await self._responses.intake.asked(parsed, request.headers, request[EXCHANGE])
            if parsed.store:
                return RecordingAsk(asked.ask)
            parsed = parsed.answering()
            ask = replace(asked.ask, request=parsed)
            asked = replace(asked, ask=ask, found={}, history=[])
            return ask

        def keep(answer: Renderer | Collector) -> None:
            if asked is not None and isinstance(answer, RecordingStream | ResponsesCollector):
                self._keep(asked, answer)

        on_end = keep if parsed.store else None
        serve = self._responses.turns.serve
        try:
            return await serve(request, self._responses.dialect, read, on_end=on_end)
        except ContextOverflow as overflow:
            if asked is None or not asked.ask.truncate:
                raise
            fitting = await self._fitting(asked.ask, overflow)

        async def read_again() -> Ask:
            return RecordingAsk(fitting) if parsed.store else fitting

        return await serve(request, self._responses.dialect, read_again, on_end=on_end)

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        """A stored response, or its stream from some event on."""
        id, tenant = request.match_info["id"], request[EXCHANGE].tenant
        stream = request.query.get("stream", "").lower() in ("true", "1")
        after = integer(request.query, "starting_after", 0, None)
        job = self._responses.background.find(id, tenant)
        if job is not None:
            if stream:
                return await send_events(request, job.follow(-1 if after is None else after), self._responses.limits)
            return _json(msgspec.json.encode(job.document()))
        record = await self._record(request)
        if not stream:
            return _json(bytes_of(record.response))
        at = -1 if after is None else after
        if not record.ended:
            events = distant_events(self._responses.store, record, at)
        elif record.events:
            events = stored_events(record, at)
        else:
            raise Invalid("This response was not streamed, and has no stream to send again.", param="stream")
        return await send_events(request, events, self._responses.limits)

    async def delete(self, request: web.Request) -> web.Response:
        """Forgets a response; one that still runs is cancelled first."""
        id, tenant = request.match_info["id"], request[EXCHANGE].tenant
        job = self._responses.background.find(id, tenant)
        if job is not None:
            self._responses.background.cancel(id)
            await job.wait()
        if not await self._responses.store.delete(id, tenant):
            raise _not_found(id)
        return _json(msgspec.json.encode({"id": id, "object": "response", "deleted": True}))

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancels a background response. One that has ended stays as it is, and is told."""
        id, tenant = request.match_info["id"], request[EXCHANGE].tenant
        job = self._responses.background.find(id, tenant)
        if job is not None:
            self._responses.background.cancel(id)
            return _json(bytes_of((await job.wait()).response))
        record = await self._record(request)
        if not record.background:
            raise Invalid("Cannot cancel a synchronous response.", param="response_id")
        if not record.ended:
            self._responses.cancel_elsewhere(id)
            record = await self._until_ended(record)
        return _json(bytes_of(record.response))

    async def input_items(self, request: web.Request) -> web.Response:
        """What a response was made from, the chain before it included."""
        page = page_of(request.query)
        tenant = request[EXCHANGE].tenant
        job = self._responses.background.find(request.match_info["id"], tenant)
        if job is not None:
            return _json(listed([*job.asked.history, *job.asked.items()], page))
        record = await self._record(request)
        before: list[Raw] = []
        if record.previous is not None:
            try:
                before = items_of(await self._responses.intake.histories.chain(record.previous, tenant))
            except Invalid:
                pass  # forgotten since
        return _json(listed([*before, *record.input], page))

    async def input_tokens(self, request: web.Request) -> web.Response:
        """How many tokens the prompt of a request would have."""
        parsed = await self._parsed(request, counting=True)
        asked = await self._responses.intake.asked(parsed, request.headers, request[EXCHANGE], counting=True)
        tokens = await self._responses.gateway.count(asked.ask.conversation)
        request[EXCHANGE].fields |= {"model": parsed.model, "prompt_tokens": tokens}
        return _json(self._responses.dialect.count_body(tokens))

    async def compact(self, request: web.Request) -> web.StreamResponse:
        """A conversation, compacted."""
        parsed = await self._parsed(request, counting=True)
        if parsed.body.input is None:
            parsed.body.input = []  # optional here: a conversation of nothing is compacted all the same

        async def read() -> Ask:
            asked = await self._responses.intake.asked(parsed, request.headers, request[EXCHANGE], compacting=True)
            return CompactAsk(asked)

        return await self._responses.turns.serve(request, self._responses.dialect, read)

    async def _parsed(self, request: web.Request, *, counting: bool = False) -> ResponsesRequest:
        exchange = request[EXCHANGE]
        try:
            body = await read_body(request, self._responses.max_body_bytes)
            return await apart(len(body), lambda: self._responses.dialect.decode(body, counting=counting))
        except TurnwireError as error:
            taken = asyncio.get_running_loop().time() - exchange.started
            self._responses.metrics.answered("", self._responses.dialect.name, str(error.info.kind), taken)
            raise

    async def _start(self, request: web.Request, parsed: ResponsesRequest) -> web.StreamResponse:
        exchange = request[EXCHANGE]
        asked = await self._responses.intake.asked(parsed, request.headers, exchange)
        reply = self._responses.runner.reply(exchange, parsed.model)
        job = self._responses.background.start(asked, reply, exchange)
        exchange.note(asked.ask.notes)
        if parsed.stream:
            return await send_events(request, job.follow(-1), self._responses.limits)
        return _json(msgspec.json.encode(job.document()))

    def _keep(self, asked: Asked, answer: RecordingStream | ResponsesCollector) -> None:
        events = answer.events_packed() if isinstance(answer, RecordingStream) else b""
        created = answer.response()["created_at"]
        self._responses.store.put(asked.record(answer, created=created, events=events))

    async def _fitting(self, ask: ResponsesAsk, overflow: ContextOverflow) -> ResponsesAsk:
        conversation = await shortened(ask.conversation, overflow, self._responses.gateway.count)
        return replace(ask, conversation=conversation)

    async def _record(self, request: web.Request) -> StoredResponse:
        id = request.match_info["id"]
        record = await self._responses.store.get(id, request[EXCHANGE].tenant)
        if record is None:
            raise _not_found(id)
        return record

    async def _until_ended(self, record: StoredResponse) -> StoredResponse:
        for _ in range(CANCEL_LOOKS):
            await asyncio.sleep(CANCEL_LOOK_S)
            found = await self._responses.store.get(record.id, record.tenant, patient=False)
            if found is None or found.ended:
                return found or record
        return record


def _in_own_words(handler: Handler) -> Handler:
    """The handler, with errors that name fields as this API does."""

    async def told(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except TurnwireError as error:
            raise raised(own_words(error.info)) from error

    return told


def _json(body: bytes | memoryview) -> web.Response:
    return web.Response(body=bytes(body), content_type="application/json")


def _not_found(id: str) -> NotFound:
    return NotFound(f"Response with id '{id}' not found.", param="response_id")

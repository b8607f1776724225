"""Handles the routes under `/v1/responses`, and ends running responses with the process."""

import asyncio
import time
from contextlib import suppress
from functools import cached_property

import msgspec
from aiohttp import web
from msgspec import Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.control import ModelCard, ResponseCancelled, ResponseDeleted, ResponseNotice
from schemas.conversation import Conversation
from schemas.errors import ContextOverflow, Invalid, TurnwireError
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.dialect import Responses, ResponsesTurn
from services.frontend.apis.responses.errors import not_found
from services.frontend.apis.responses.render.stream import ResponsesCollector
from services.frontend.apis.responses.request.body import ResponsesRequest
from services.frontend.apis.responses.request.items import TextSealer
from services.frontend.apis.responses.state.background import (
    Background,
    Job,
    send_events,
    stored_events,
)
from services.frontend.apis.responses.state.expand import chain_items
from services.frontend.apis.responses.state.input_items import integer, list_page, page_of
from services.frontend.apis.responses.state.intake import Intake
from services.frontend.apis.responses.state.keep import AcceptedRequest, Recorder
from services.frontend.apis.responses.state.record import StoredResponse
from services.frontend.apis.responses.state.runner import truncate
from services.frontend.apis.responses.state.socket import Connections
from services.frontend.apis.responses.state.store import (
    SHARING,
    MemoryStore,
    SharedStore,
    StoreLimits,
)
from services.frontend.apis.shared.mount import Mount, json_response
from services.frontend.http.bodies import is_large, read_body, run_in_thread_if
from services.frontend.http.middleware import REQUEST_CONTEXT, RequestContext
from services.frontend.turns.admission import Admission
from services.frontend.turns.interfaces import Collector, ParsedRequest, Renderer
from services.runtime.storage.seal import Sealer, TenantSealer

PATH = "/v1/responses"
CANCEL_POLLS = 20
CANCEL_POLL_S = 0.1
"""How often a response is read while another process cancels it, and the pause before each read."""
SETTLE_S = 2.0
"""The time for the last writes to the bucket at shutdown."""


class ModelSealer(TextSealer):
    """Seals with a key derived from the name of the request's model. Raises NotFound on first use
    if it is not served.

    Items are opened while the conversation is read, before its session is known. So it opens what
    any of the models sealed that share an alias: one of them has the session.
    """

    def __init__(self, admission: Admission, name: str, context: RequestContext) -> None:
        """`name`: the model's name or alias in the request."""
        self._admission = admission
        self._name = name
        self._context = context

    @override
    def seal(self, text: str) -> str:
        return (self._own() or self._named)[0].seal(text)

    @override
    def open(self, blob: str) -> str | None:
        texts = (sealer.open(blob) for sealer in [*self._own(), *self._named])
        return next((text for text in texts if text is not None), None)

    def _own(self) -> list[TenantSealer]:
        """The sealer of the request's model, once that is looked up for the session."""
        return [] if self._context.card is None else [self._of(self._context.card)]

    @cached_property
    def _named(self) -> list[TenantSealer]:
        admission, caller = self._admission, self._context.caller
        card = admission.resolve(self._name, caller)
        others = [
            other
            for other in admission.models(caller)
            if set(card.aliases).intersection(other.aliases)
        ]
        return [self._of(one) for one in [card, *others]]

    def _of(self, card: ModelCard) -> TenantSealer:
        return Sealer.load(None, card.name).of(self._context.tenant)


class ResponsesServer:
    """The handlers of `/v1/responses`, and the state that they share."""

    def __init__(self, mount: Mount) -> None:
        """Raises OSError where the sealing key cannot be read."""
        config, admission = mount.config, mount.runner.admission
        self.dialect = Responses(config.served_tools)
        self._mount = mount
        self._turns = mount.runner
        self._sharing = mount.app.get(SHARING)
        limits = StoreLimits(
            config.response_store_ttl_s, config.response_store_entries, config.response_store_bytes
        )
        self.store = MemoryStore(limits, time.time)
        if self._sharing is not None:
            self.store = SharedStore(limits, time.time, self._sharing, mount.log)
        common = Sealer.load(config.seal_key_file, "") if config.seal_key_file else None

        def sealer_of(model: str, context: RequestContext) -> TextSealer:
            return (
                common.of(context.tenant)
                if common is not None
                else ModelSealer(admission, model, context)
            )

        self._intake = Intake(self.dialect, self.store, sealer_of, mount.runner)
        self.background = Background(
            self._intake, owner="here" if self._sharing is None else self._sharing.id
        )
        self.connections = Connections(self._intake)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Registers every path."""
        router.add_post(PATH, self.create)
        router.add_get(PATH, self.connections.handle, allow_head=False)
        router.add_post(f"{PATH}/compact", self.compact)
        router.add_post(f"{PATH}/input_tokens", self.input_tokens)
        router.add_get(f"{PATH}/{{id}}", self.retrieve, allow_head=False)
        router.add_delete(f"{PATH}/{{id}}", self.delete)
        router.add_post(f"{PATH}/{{id}}/cancel", self.cancel)
        router.add_get(f"{PATH}/{{id}}/input_items", self.input_items, allow_head=False)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Creates a response: whole, as a stream, or in the background."""
        body = await self._decode(request)
        if body.body.background:
            return await self._start(request, body)
        context = request[REQUEST_CONTEXT]
        accepted: AcceptedRequest | None = None

        async def read() -> ParsedRequest:
            nonlocal accepted, body
            accepted = await self._intake.accept(body, request.headers, context)
            if not body.store:
                body = body.without_input()
                accepted.ask = replace(accepted.ask, request=body)
            return accepted.ask

        def keep(answer: Renderer | Collector) -> None:
            if accepted is None or not isinstance(answer, Recorder | ResponsesCollector):
                return
            recording = answer.recording() if isinstance(answer, Recorder) else b""
            self.store.put(accepted.record(answer.stream, recording))

        async def shorten(conversation: Conversation, overflow: ContextOverflow) -> Conversation:
            if accepted is None:
                raise overflow
            return await truncate(self._turns, accepted.ask, context, conversation, overflow)

        on_end, record = (keep, Recorder) if body.store else (None, None)
        return await self._mount.serve(
            request, self.dialect, read, on_end=on_end, shorten=shorten, wrap=record
        )

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        """Returns a stored response, or its stream after some event."""
        stream = request.query.get("stream", "").lower() in ("true", "1")
        number = integer(request.query, "starting_after")
        after = -1 if number is None else number
        job = self._job(request)
        if job is not None:
            if stream:
                return await send_events(request, job.follow(after), self._turns.config)
            return json_response(msgspec.json.encode(job.document()))
        record = await self._record(request)
        if not stream:
            return json_response(record.response)
        if record.ended and not record.events:
            raise Invalid(
                "This response was not streamed, and has no stream to send again.", param="stream"
            )
        events = stored_events(self.store, record, after)
        return await send_events(request, events, self._turns.config)

    async def delete(self, request: web.Request) -> web.Response:
        """Deletes a response; one that still runs is cancelled first."""
        id, tenant = request.match_info["id"], request[REQUEST_CONTEXT].tenant
        job = self._job(request)
        if job is not None:
            self.background.cancel(id)
            await job.wait()
        if not await self.store.delete(id, tenant):
            raise not_found("Response", id, "response_id")
        return json_response(msgspec.json.encode(wire.Deleted(id)))

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancels a background response. A response that has ended is returned unchanged."""
        id, job = request.match_info["id"], self._job(request)
        if job is not None:
            self.background.cancel(id)
            return json_response((await job.wait()).response)
        record = await self._record(request)
        if not record.background:
            raise Invalid("Cannot cancel a synchronous response.", param="response_id")
        if not record.ended:
            if self._sharing is not None:  # the frontend in which it runs cancels it
                self._sharing.publish_notice(ResponseCancelled(id))
            for _ in range(CANCEL_POLLS):
                await asyncio.sleep(CANCEL_POLL_S)
                record = await self.store.get(id, record.tenant) or record
                if record.ended:
                    break
        return json_response(record.response)

    async def input_items(self, request: web.Request) -> web.Response:
        """Lists the items that a response was made from, with the chain before it."""
        page, record = page_of(request.query), await self._record(request)
        before: list[Raw] = []
        if record.previous is not None:
            try:
                before = await chain_items(self.store, record.previous, record.tenant)
            except Invalid:
                pass  # deleted or expired since
        return json_response(list_page([*before, *record.input], *page))

    async def input_tokens(self, request: web.Request) -> web.Response:
        """Counts the tokens of a request's prompt."""
        body, context = await self._decode(request), request[REQUEST_CONTEXT]
        conversation = await self._intake.prompt(body, request.headers, context)
        tokens = await self._turns.count(conversation, context)
        context.fields |= {"model": body.model, "prompt_tokens": tokens}
        return json_response(self.dialect.count_body(tokens))

    async def compact(self, request: web.Request) -> web.StreamResponse:
        """Compacts a conversation: its user messages and one sealed summary."""
        body = await self._decode(request)
        if body.body.input is None:
            body.body.input = []  # optional here: an empty conversation is compacted too

        async def read() -> ResponsesTurn:
            return (
                await self._intake.accept(
                    body, request.headers, request[REQUEST_CONTEXT], compacting=True
                )
            ).ask

        return await self._mount.serve(request, self.dialect, read)

    async def _decode(self, request: web.Request) -> ResponsesRequest:
        try:
            data = await read_body(request, self._turns.config.max_body_bytes)
            return await run_in_thread_if(is_large(data), lambda: self.dialect.decode(data))
        except TurnwireError as error:  # `Mount.serve` counts later refusals
            seconds = asyncio.get_running_loop().time() - request[REQUEST_CONTEXT].started
            self._turns.metrics.count_answer("", self.dialect.name, str(error.info.kind), seconds)
            raise

    async def _start(self, request: web.Request, body: ResponsesRequest) -> web.StreamResponse:
        context = request[REQUEST_CONTEXT]
        accepted = await self._intake.accept(body, request.headers, context)
        conversation, turns = accepted.ask.conversation, self._turns
        await turns.admission.admit(
            conversation, context.caller, turns.model(conversation, context)
        )  # else it would fail
        await turns.report(accepted.ask, context)
        job = self.background.start(accepted, context)
        if body.body.stream:
            return await send_events(request, job.follow(-1), self._turns.config)
        return json_response(msgspec.json.encode(job.document()))

    def _job(self, request: web.Request) -> Job | None:
        """The response if it runs in the background of this process."""
        return self.background.find(request.match_info["id"], request[REQUEST_CONTEXT].tenant)

    async def _record(self, request: web.Request) -> StoredResponse:
        id = request.match_info["id"]
        record = await self.store.get(id, request[REQUEST_CONTEXT].tenant)
        if record is None:
            raise not_found("Response", id, "response_id")
        return record

    def apply_notice(self, notice: ResponseNotice) -> None:
        """Applies a notice of another frontend about a stored response."""
        match notice:
            case ResponseCancelled(id):
                self.background.cancel(id)
            case ResponseDeleted(id):
                self.store.forget(id)

    async def drain(self) -> None:
        """Accepts nothing new; returns when background responses have ended and all writes to the
        store are done."""
        self.connections.drain()
        try:
            await self.background.drain()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self.store.wait_for_writes()

    async def close(self, _app: web.Application) -> None:
        """Handler of the application's shutdown signal: ends running responses."""
        self.connections.drain()
        await self.background.end()


RESPONSES: web.AppKey[ResponsesServer] = web.AppKey("responses", ResponsesServer)

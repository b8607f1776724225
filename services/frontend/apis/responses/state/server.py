"""Handles the routes under `/v1/responses`, and ends running responses with the process."""

import asyncio
from contextlib import ExitStack, suppress

from aiohttp import web
from msgspec import Raw

from schemas.errors import Invalid, TurnwireError
from schemas.notices import ResponseCancelled, ResponseDeleted, ResponseNotice
from services.frontend.apis.responses import wire_answers
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.errors import not_found
from services.frontend.apis.responses.request.body import ResponsesRequest
from services.frontend.apis.responses.state.background import Background, Job
from services.frontend.apis.responses.state.expand import chain_items
from services.frontend.apis.responses.state.follow import send_events, stored_events
from services.frontend.apis.responses.state.input_items import integer, list_page, page_of
from services.frontend.apis.responses.state.intake import Intake
from services.frontend.apis.responses.state.recording import AcceptedRequest, StoredStream
from services.frontend.apis.responses.state.sealing import Sealers
from services.frontend.apis.responses.state.socket import Connections
from services.frontend.apis.shared.api import ApiSetup, encoded_response, json_response
from services.frontend.apis.shared.http_answer import HttpAnswer, http_answer, read_request
from services.frontend.http.auth import CALLERS
from services.frontend.http.middleware import REQUEST_CONTEXT
from services.frontend.stored.record import StoredResponse
from services.frontend.stored.store import STORE
from services.frontend.turns.turn_service import ModelAccess

PATH = "/v1/responses"
CANCEL_POLLS = 20
CANCEL_POLL_S = 0.1
"""How often a response is read while another process cancels it, and the pause before each read."""
SETTLE_S = 2.0
"""The time for the last writes to the bucket at shutdown."""


class ResponsesServer:
    """The handlers of `/v1/responses`, and the state that they share."""

    def __init__(self, setup: ApiSetup) -> None:
        """Raises OSError where the sealing key cannot be read."""
        config = setup.config
        self.dialect = Responses(config.served_tools)
        self._turns = setup.turns
        self.store = setup.app[STORE]
        sealers = Sealers(config.seal_key_file)
        self._intake = Intake(self.dialect, self.store, sealers, setup.turns)
        self.background = Background(self.store, setup.turns, setup.app[CALLERS])
        self.connections = Connections(self._intake)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Registers every path."""
        response = f"{PATH}/{{id}}"
        router.add_post(PATH, self.create)
        router.add_get(PATH, self.connections.handle, allow_head=False)
        router.add_post(f"{PATH}/compact", self.compact)
        router.add_post(f"{PATH}/input_tokens", self.input_tokens)
        router.add_get(response, self.retrieve, allow_head=False)
        router.add_delete(response, self.delete)
        router.add_post(f"{response}/cancel", self.cancel)
        router.add_get(f"{response}/input_items", self.input_items, allow_head=False)

    async def create(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/responses`: a response, as a document, as a stream, or in the background."""
        request = await self._decode(http)
        if request.body.background:
            return await self._create_in_background(http, request)

        async with http_answer(self._turns, http, self.dialect) as answer:
            accepted = await self._intake.accept(request, http.headers, answer.model)
            if request.store:
                return await self._send_stored(answer, accepted)

            converted = accepted.converted.without_input()
            del request, accepted  # their items keep the bytes of the whole request in memory
            return await answer.respond(converted)

    async def compact(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/responses/compact`: a conversation's user messages and one sealed summary."""
        request = await self._decode(http)
        if request.body.input is None:
            request.body.input = []  # optional here: an empty conversation is compacted too

        async with http_answer(self._turns, http, self.dialect) as answer:
            converted = await self._intake.compact(request, http.headers, answer.model)
            return await answer.respond(converted)

    async def input_tokens(self, http: web.Request) -> web.Response:
        """`POST /v1/responses/input_tokens`: the exact size of a request's prompt."""
        context = http[REQUEST_CONTEXT]
        context.caller.limiter.count()
        request = await self._decode(http)
        model = ModelAccess(self._turns, context)
        conversation = await self._intake.prompt(request, http.headers, model)

        tokens = await model.count_for_client(conversation)
        return json_response(wire_answers.ResponsesTokens(input_tokens=tokens))

    async def retrieve(self, http: web.Request) -> web.StreamResponse:
        """`GET /v1/responses/{id}`: a stored response, or its stream after some event."""
        follow = http.query.get("stream", "").lower() in ("true", "1")
        number = integer(http.query, "starting_after")
        after = -1 if number is None else number

        job = self._running_job(http)
        if job is not None:
            if follow:
                return await send_events(http, job.follow(after), self._turns.config)
            return json_response(job.document())

        record = await self._stored_record(http)
        if not follow:
            return json_response(record.response)
        if record.ended and not record.events:
            raise Invalid(
                "This response was not streamed, and has no stream to send again.", param="stream"
            )
        events = stored_events(self.store, record, after)
        return await send_events(http, events, self._turns.config)

    async def delete(self, http: web.Request) -> web.Response:
        """`DELETE /v1/responses/{id}`: deletes a response; one that still runs is cancelled
        first."""
        id = http.match_info["id"]
        job = self._running_job(http)
        if job is not None:
            self.background.cancel(id)
            await job.wait()
        if not await self.store.delete(id, http[REQUEST_CONTEXT].owner):
            raise not_found("Response", id, "response_id")
        return json_response(wire_answers.Deleted(id))

    async def cancel(self, http: web.Request) -> web.Response:
        """`POST /v1/responses/{id}/cancel`: cancels a background response. A response that has
        ended is returned unchanged."""
        job = self._running_job(http)
        if job is not None:
            self.background.cancel(job.id)
            ended = await job.wait()
            return json_response(ended.response)

        record = await self._stored_record(http)
        if not record.background:
            raise Invalid("Cannot cancel a synchronous response.", param="response_id")
        if not record.ended:
            self.store.cancel_elsewhere(record.id)
            record = await self._wait_for_end(record)
        return json_response(record.response)

    async def input_items(self, http: web.Request) -> web.Response:
        """`GET /v1/responses/{id}/input_items`: the items that a response was made from, with the
        chain before it."""
        page = page_of(http.query)
        record = await self._stored_record(http)
        before: list[Raw] = []
        if record.previous is not None:
            with suppress(Invalid):  # deleted or expired since
                before = await chain_items(self.store, record.previous, record.tenant)
        return json_response(list_page([*before, *record.input], *page))

    def apply_notice(self, notice: ResponseNotice) -> None:
        """Applies a notice of another frontend about a stored response."""
        match notice:
            case ResponseCancelled(id):
                self.background.cancel(id)
            case ResponseDeleted(id):
                self.background.delete(id)
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

    async def _decode(self, http: web.Request) -> ResponsesRequest:
        try:
            return await read_request(
                http, self._turns.config.max_body_bytes, lambda body, _: self.dialect.decode(body)
            )
        except TurnwireError as error:  # `http_answer` counts later refusals
            self._turns.metrics.count_refusal(self.dialect.name, str(error.info.kind))
            raise

    async def _send_stored(
        self, answer: HttpAnswer, accepted: AcceptedRequest
    ) -> web.StreamResponse:
        """Sends an answer that is stored before the client gets its end."""
        converted = accepted.converted
        if converted.stream:
            log = self._turns.log
            return await answer.stream(
                converted,
                lambda info: StoredStream(converted.renderer(info), accepted, self.store, log),
            )
        collector = await answer.collect(converted, converted.collector)
        document = collector.body()
        self.store.put(accepted.record(collector.stream))
        return encoded_response(document)

    async def _create_in_background(
        self, http: web.Request, request: ResponsesRequest
    ) -> web.StreamResponse:
        """Starts a response that the client polls or follows."""
        context = http[REQUEST_CONTEXT]
        model = ModelAccess(self._turns, context)
        with ExitStack() as open_request:
            open_request.enter_context(context.open_request())
            accepted = await self._intake.accept(request, http.headers, model)
            # A request that must be refused is refused now. The job admits it again when its time
            # has come, because rights and stored images may have changed while it waited.
            await model.admit(accepted.converted.conversation)
            await model.report(accepted.converted)

            job = self.background.start(accepted, model, open_request)
        if request.body.stream:
            return await send_events(http, job.follow(-1), self._turns.config)
        return json_response(job.document())

    def _running_job(self, http: web.Request) -> Job | None:
        """The response that a path names, if it runs in the background of this process."""
        return self.background.find(http.match_info["id"], http[REQUEST_CONTEXT].owner)

    async def _stored_record(self, http: web.Request) -> StoredResponse:
        """The response that a path names. Raises NotFound."""
        id = http.match_info["id"]
        record = await self.store.get(StoredResponse, id, http[REQUEST_CONTEXT].owner)
        if record is None:
            raise not_found("Response", id, "response_id")
        return record

    async def _wait_for_end(self, record: StoredResponse) -> StoredResponse:
        """Waits for a moment until a response has ended that another process cancels."""
        for _ in range(CANCEL_POLLS):
            await asyncio.sleep(CANCEL_POLL_S)
            record = await self.store.get(StoredResponse, record.id, record.tenant) or record
            if record.ended:
                break
        return record


RESPONSES: web.AppKey[ResponsesServer] = web.AppKey("responses", ResponsesServer)

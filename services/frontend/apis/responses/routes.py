"""The operations of the Responses API."""

from contextlib import ExitStack, suppress

from aiohttp import web
from msgspec import Raw

from schemas.errors import Invalid, TurnwireError
from services.frontend.apis.responses import wire, wire_answers, wire_events
from services.frontend.apis.responses.errors import FORMAT, not_found
from services.frontend.apis.responses.parse.body import DecodedRequest
from services.frontend.apis.responses.request import DIALECT, Responses
from services.frontend.apis.responses.state.accepted_request import StoredRequest
from services.frontend.apis.responses.state.background import (
    Background,
    Job,
    send_events,
    stored_events,
    wait_for_end,
)
from services.frontend.apis.responses.state.input_items import integer, list_page, page_of
from services.frontend.apis.responses.state.references import chain_items
from services.frontend.apis.responses.state.request_reader import RequestReader
from services.frontend.apis.responses.state.running_responses import (
    RUNNING_RESPONSES,
    RunningResponses,
)
from services.frontend.apis.responses.state.socket.connections import Connections
from services.frontend.apis.shared.api import (
    WEATHER_PARAMETERS,
    Api,
    ApiSetup,
    Operation,
    Query,
    json_response,
)
from services.frontend.apis.shared.http_answer import http_answer, read_request
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.stored.record import StoredResponse
from services.frontend.turns.turn_service import ModelAccess

PATH = "/v1/responses"
_RESPONSE = f"{PATH}/{{id}}"
_ID = "The id of a response."
_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": WEATHER_PARAMETERS,
    "strict": False,
}
_EXAMPLE = {"model": "your-model", "input": "What is the weather in Paris?"}
_TURN = {**_EXAMPLE, "tools": [_WEATHER], "reasoning": {"effort": "medium"}}
_PAGE = (
    Query(
        "limit",
        {"type": "integer", "minimum": 0, "maximum": 100},
        "Most items to return; default: 20.",
    ),
    Query("after", {"type": "string"}, "Return the items that follow this one."),
    Query("order", {"enum": ["asc", "desc"]}, "Oldest or newest first; default: newest."),
)
_FOLLOW = (
    Query("stream", {"type": "boolean"}, "Send the events of the response again."),
    Query(
        "starting_after",
        {"type": "integer", "minimum": 0},
        "Leave out the events up to this sequence number.",
    ),
)


class ResponsesRoutes:
    """The handlers of the Responses API."""

    def __init__(self, setup: ApiSetup) -> None:
        """Raises OSError where the sealing key cannot be read."""
        config = setup.config
        store = setup.store
        self._turns = setup.turns
        self._store = store
        self._responses = Responses(config.served_tools)
        self._reader = RequestReader(self._responses, store, setup.turns)
        self._background = Background(store, setup.turns, setup.callers)
        self._connections = Connections(self._reader, setup.callers)
        self.running = RunningResponses(store, self._background, self._connections)

    async def create(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/responses`: a response, as a document, as a stream, or in the background."""
        decoded = await self._decode(http)
        if decoded.body.background:
            return await self._create_in_background(http, decoded)

        async with http_answer(self._turns, http, DIALECT) as answer:
            accepted = await self._reader.read(decoded, http.headers, answer.model)
            if decoded.store:
                stored = StoredRequest.of(accepted, self._store, self._turns.log)
                return await answer.respond(stored)

            request = accepted.request.without_input()
            del decoded, accepted  # their items keep the bytes of the whole request in memory
            return await answer.respond(request)

    async def connect(self, http: web.Request) -> web.StreamResponse:
        """`GET /v1/responses`: a WebSocket for many responses."""
        return await self._connections.handle(http)

    async def compact(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/responses/compact`: a conversation's user messages and one sealed summary."""
        decoded = await self._decode(http)
        if decoded.body.input is None:
            decoded.body.input = []  # optional here: an empty conversation is compacted too

        async with http_answer(self._turns, http, DIALECT) as answer:
            request = await self._reader.read_compaction(decoded, http.headers, answer.model)
            return await answer.respond(request)

    async def input_tokens(self, http: web.Request) -> web.Response:
        """`POST /v1/responses/input_tokens`: the exact size of a request's prompt."""
        context = http[REQUEST_CONTEXT]
        context.caller.limiter.count()
        decoded = await self._decode(http)
        model = ModelAccess(self._turns, context)
        conversation = await self._reader.read_prompt(decoded, http.headers, model)

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
        events = stored_events(self._store, record, after)
        return await send_events(http, events, self._turns.config)

    async def delete(self, http: web.Request) -> web.Response:
        """`DELETE /v1/responses/{id}`: deletes a response; one that still runs is cancelled
        first."""
        id = http.match_info["id"]
        job = self._running_job(http)
        if job is not None:
            self._background.cancel(id)
            await job.wait()
        if not await self._store.delete(id, http[REQUEST_CONTEXT].owner):
            raise not_found("Response", id, "response_id")
        return json_response(wire_answers.Deleted(id))

    async def cancel(self, http: web.Request) -> web.Response:
        """`POST /v1/responses/{id}/cancel`: cancels a background response. A response that has
        ended is returned unchanged."""
        job = self._running_job(http)
        if job is not None:
            self._background.cancel(job.id)
            ended = await job.wait()
            return json_response(ended.response)

        record = await self._stored_record(http)
        if not record.background:
            raise Invalid("Cannot cancel a synchronous response.", param="response_id")
        if not record.ended:
            self._store.cancel_elsewhere(record.id)
            record = await wait_for_end(self._store, record)
        return json_response(record.response)

    async def input_items(self, http: web.Request) -> web.Response:
        """`GET /v1/responses/{id}/input_items`: the items that a response was made from, with the
        chain before it."""
        page = page_of(http.query)
        record = await self._stored_record(http)
        before: list[Raw] = []
        if record.previous is not None:
            with suppress(Invalid):  # deleted or expired since
                before = await chain_items(self._store, record.previous, record.tenant)
        return json_response(list_page([*before, *record.input], *page))

    async def _decode(self, http: web.Request) -> DecodedRequest:
        try:
            return await read_request(
                http,
                self._turns.config.max_body_bytes,
                lambda body, _: self._responses.decode(body),
            )
        except TurnwireError as error:  # `http_answer` counts later refusals
            self._turns.metrics.count_refusal(DIALECT.name, str(error.info.kind))
            raise

    async def _create_in_background(
        self, http: web.Request, decoded: DecodedRequest
    ) -> web.StreamResponse:
        """Starts a response that the client polls or follows."""
        context = http[REQUEST_CONTEXT]
        model = ModelAccess(self._turns, context)
        with ExitStack() as open_request:
            open_request.enter_context(context.open_request())
            accepted = await self._reader.read(decoded, http.headers, model)
            # A request that must be refused is refused now. The job admits it again when its time
            # has come, because rights and stored images may have changed while it waited.
            conversation = accepted.request.conversation
            card = model.card_for(conversation)
            await self._turns.admission.admit(conversation, context.caller, card)
            await model.report(accepted.request)

            job = self._background.start(accepted, model, open_request)
        if decoded.body.stream:
            return await send_events(http, job.follow(-1), self._turns.config)
        return json_response(job.document())

    def _running_job(self, http: web.Request) -> Job | None:
        """The response that a path names, if it runs in the background of this process."""
        return self._background.find(http.match_info["id"], http[REQUEST_CONTEXT].owner)

    async def _stored_record(self, http: web.Request) -> StoredResponse:
        """The response that a path names. Raises NotFound."""
        id = http.match_info["id"]
        record = await self._store.get(StoredResponse, id, http[REQUEST_CONTEXT].owner)
        if record is None:
            raise not_found("Response", id, "response_id")
        return record


def _add_routes(setup: ApiSetup) -> None:
    routes = ResponsesRoutes(setup)
    setup.app[RUNNING_RESPONSES] = routes.running
    setup.app.on_shutdown.append(routes.running.close)
    router = setup.app.router
    router.add_post(PATH, routes.create)
    router.add_get(PATH, routes.connect, allow_head=False)
    router.add_post(f"{PATH}/compact", routes.compact)
    router.add_post(f"{PATH}/input_tokens", routes.input_tokens)
    router.add_get(_RESPONSE, routes.retrieve, allow_head=False)
    router.add_delete(_RESPONSE, routes.delete)
    router.add_post(f"{_RESPONSE}/cancel", routes.cancel)
    router.add_get(f"{_RESPONSE}/input_items", routes.input_items, allow_head=False)


API = Api(
    name="Responses",
    title="OpenAI Responses",
    errors=FORMAT,
    paths=(PATH,),
    operations=(
        Operation(
            PATH,
            "Create a response",
            body=wire.ResponsesBody,
            example=_TURN,
            answer=wire_answers.ResponsesAnswer,
            events=wire_events.Event,
        ),
        Operation(PATH, "Open a WebSocket for responses", "get", upgrade=True),
        Operation(
            f"{PATH}/compact",
            "Compact a conversation",
            body=wire.ResponsesBody,
            example=_EXAMPLE,
            answer=wire_answers.Compaction,
        ),
        Operation(
            f"{PATH}/input_tokens",
            "Count the tokens of a response's prompt",
            body=wire.ResponsesBody,
            example=_EXAMPLE,
            answer=wire_answers.ResponsesTokens,
        ),
        Operation(
            _RESPONSE,
            "Retrieve a stored response",
            "get",
            answer=wire_answers.ResponsesAnswer,
            events=wire_events.Event,
            query=_FOLLOW,
            id=_ID,
        ),
        Operation(
            _RESPONSE, "Delete a stored response", "delete", answer=wire_answers.Deleted, id=_ID
        ),
        Operation(
            f"{_RESPONSE}/cancel",
            "Cancel a background response",
            answer=wire_answers.ResponsesAnswer,
            id=_ID,
        ),
        Operation(
            f"{_RESPONSE}/input_items",
            "List the input of a response",
            "get",
            answer=wire_answers.Items,
            query=_PAGE,
            id=_ID,
        ),
    ),
    parts=wire_answers.OUTPUT_ITEMS,
    add_routes=_add_routes,
)

"""The operations of the Messages API."""

from aiohttp import web

from services.frontend.apis.messages import wire, wire_answers
from services.frontend.apis.messages.context_management import apply_context_edits, compact
from services.frontend.apis.messages.errors import ANTHROPIC
from services.frontend.apis.messages.message_renderer import message_id
from services.frontend.apis.messages.request import DIALECT, Messages, MessagesRequest
from services.frontend.apis.messages.thread_history import held_messages
from services.frontend.apis.messages.threads import Threads
from services.frontend.apis.shared.api import (
    WEATHER_PARAMETERS,
    Api,
    ApiSetup,
    Operation,
    json_response,
)
from services.frontend.apis.shared.http_answer import http_answer, read_request
from services.frontend.http.bodies import is_large
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.turns.turn_service import ModelAccess
from services.runtime.config.frontend import FrontendConfig
from services.runtime.long_work import run_in_thread_if

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"

_QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
_EXAMPLE = {
    "model": "your-model",
    "max_tokens": 1024,
    "system": "You are a helpful agent.",
    "messages": [
        _QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": ""},
                {
                    "type": "tool_use",
                    "id": "toolu_01",
                    "name": "get_weather",
                    "input": {"city": "Paris"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01", "content": "18 degrees, sunny"}
            ],
        },
    ],
    "tools": [
        {
            "name": "get_weather",
            "description": "Current weather.",
            "input_schema": WEATHER_PARAMETERS,
        }
    ],
    "thinking": {"type": "adaptive"},
}
_EVENT_NAMES = (
    "message_(start|delta|stop)",
    "content_block_(start|delta|stop)",
    "ping",
    "error",
    "tool_call_dispatch",
    "reasoning_dispatch",
)
_EVENTS = f"^({'|'.join(_EVENT_NAMES)})$"


class MessagesRoutes:
    """The handlers of the Messages API."""

    def __init__(self, setup: ApiSetup) -> None:
        self._turns = setup.turns
        self._max_bytes = setup.config.max_body_bytes
        self._messages = Messages(setup.config.served_tools)
        self._threads = Threads(setup.store, setup.log)

    async def create_message(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/messages`: one answer, streamed or as a document."""
        async with http_answer(self._turns, http, DIALECT) as answer:
            request = await self._read(http, counting=False)
            async with self._threads.continuing(request.thread, message_id(answer.turn_id)):
                request = await apply_context_edits(request, answer.model)
                request = await compact(request, answer.model)
                return await answer.respond(self._threads.stored(request, answer.context))

    async def count_tokens(self, http: web.Request) -> web.Response:
        """`POST /v1/messages/count_tokens`: the exact size of a message's prompt."""
        context = http[REQUEST_CONTEXT]
        context.caller.limiter.count()
        model = ModelAccess(self._turns, context)
        request = await self._read(http, counting=True)
        request = await apply_context_edits(request, model)

        tokens = await model.count_for_client(request.conversation)
        return json_response(self._messages.count_answer(request, tokens))

    async def _read(self, http: web.Request, *, counting: bool) -> MessagesRequest:
        """Reads a request, with the history of the thread that it continues."""
        convert = self._messages.convert_count if counting else self._messages.convert
        decoded = await read_request(http, self._max_bytes, self._messages.decode)
        replies = await self._threads.replies(decoded.body.thread, http[REQUEST_CONTEXT])
        large = decoded.is_large or is_large(*held_messages(replies))
        return await run_in_thread_if(large, convert, decoded, http.headers, replies)


def _add_routes(setup: ApiSetup) -> None:
    routes = MessagesRoutes(setup)
    setup.app.router.add_post(PATH, routes.create_message)
    setup.app.router.add_post(COUNT_PATH, routes.count_tokens)


def _is_enabled(config: FrontendConfig) -> bool:
    return config.enable_anthropic_api


API = Api(
    name="Messages",
    title="Anthropic Messages",
    errors=ANTHROPIC,
    paths=("/v1/messages",),
    operations=(
        Operation(
            PATH,
            "Create a message",
            body=wire.MessagesBody,
            required=("model", "max_tokens"),
            example=_EXAMPLE,
            answer=wire_answers.MessagesAnswer,
            events=_EVENTS,
        ),
        Operation(
            COUNT_PATH,
            "Count the tokens of a message's prompt",
            body=wire.MessagesBody,
            required=("model",),
            example={"model": "your-model", "messages": [_QUESTION]},
            answer=wire_answers.MessagesTokens,
        ),
    ),
    add_routes=_add_routes,
    enabled=_is_enabled,
)

"""The operation of Chat Completions."""

from aiohttp import web

from services.frontend.apis.chat import wire
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import DIALECT, Chat
from services.frontend.apis.shared.api import WEATHER_PARAMETERS, Api, ApiSetup, Operation
from services.frontend.apis.shared.errors import CHAT
from services.frontend.apis.shared.http_answer import http_answer, read_request
from services.frontend.apis.shared.openai.chunks import EVENTS, FINGERPRINT

PATH = "/v1/chat/completions"


_EXAMPLE = {
    "model": "your-model",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [
        {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_PARAMETERS}}
    ],
}


class ChatRoutes:
    """The handler of Chat Completions."""

    def __init__(self, setup: ApiSetup) -> None:
        config = setup.config
        self._turns = setup.turns
        self._max_bytes = config.max_body_bytes
        served = frozenset(config.served_tools)
        self._chat = Chat(
            ChatSettings(config.reasoning_field, config.reasoning_details, FINGERPRINT, served)
        )

    async def create_completion(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`: a turn for each choice, streamed or as a document."""
        async with http_answer(self._turns, http, DIALECT) as answer:
            request = await read_request(http, self._max_bytes, self._chat.parse)
            return await answer.respond(request)


def _add_routes(setup: ApiSetup) -> None:
    setup.app.router.add_post(PATH, ChatRoutes(setup).create_completion)


API = Api(
    name="Chat",
    title="OpenAI Chat Completions",
    errors=CHAT,
    paths=("/v1/chat", "/v1/embeddings"),
    operations=(
        Operation(
            PATH,
            "Create a chat completion",
            body=wire.ChatBody,
            example=_EXAMPLE,
            answer=wire.ChatAnswer,
            events=EVENTS,
        ),
    ),
    add_routes=_add_routes,
)

"""The operation of Completions."""

from aiohttp import web

from services.frontend.apis.completions import wire
from services.frontend.apis.completions.request import DIALECT, Completions
from services.frontend.apis.shared.api import Api, ApiSetup, Operation
from services.frontend.apis.shared.errors import openai_format
from services.frontend.apis.shared.http_answer import http_answer, read_request
from services.frontend.apis.shared.openai.chunks import EVENTS, FINGERPRINT

PATH = "/v1/completions"
_PARAMS = {
    "stop_sequences": "stop",
    "format": "structured_outputs",
    "messages": "prompt",
    "top_logprobs": "logprobs",
}


class CompletionsRoutes:
    """The handler of Completions."""

    def __init__(self, setup: ApiSetup) -> None:
        self._turns = setup.turns
        self._max_bytes = setup.config.max_body_bytes
        self._completions = Completions(FINGERPRINT)

    async def create_completion(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`: a turn for each choice of each prompt, streamed or as a
        document."""
        async with http_answer(self._turns, http, DIALECT) as answer:
            request = await read_request(http, self._max_bytes, self._completions.parse)
            return await answer.respond(request)


def _add_routes(setup: ApiSetup) -> None:
    setup.app.router.add_post(PATH, CompletionsRoutes(setup).create_completion)


API = Api(
    name="Completions",
    title="OpenAI Chat Completions",
    errors=openai_format(_PARAMS),
    paths=("/v1/completions",),
    operations=(
        Operation(
            PATH,
            "Continue a text",
            body=wire.CompletionsBody,
            example={"model": "your-model", "prompt": "Once upon a time", "max_tokens": 64},
            answer=wire.CompletionsAnswer,
            events=EVENTS,
        ),
    ),
    add_routes=_add_routes,
)

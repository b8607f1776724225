"""Operations on the engines of all workers of a model, for callers with an operator's key.

POST /engines/pause     {"model", "mode"}
POST /engines/resume    {"model"}
POST /engines/weights   {"model", "source", "version"}

Each answers {"workers": [{"id", "weights_version", "paused", "error"}]} when every worker has done
it, or with status 502 and an error that names each worker that has not, and why.
"""

import msgspec
from aiohttp import web
from msgspec.structs import replace

from schemas.control import EngineControl, EngineState
from schemas.errors import ErrorInfo, ErrorKind, Forbidden, Invalid
from services.frontend.apis.engines import wire
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, json_response
from services.frontend.apis.shared.client import Headers
from services.frontend.apis.shared.decode import decode_body
from services.frontend.apis.shared.http_answer import read_request
from services.frontend.apis.shared.shared_errors import SHARED, union_reply
from services.frontend.http.middleware import REQUEST_CONTEXT

PATH = "/engines"
MAX_BODY_BYTES = 64 * 1024
FAILED = 502
"""The status where a worker has not done what it should."""

_decode_pause = msgspec.json.Decoder(wire.PauseBody).decode
_decode_resume = msgspec.json.Decoder(wire.ResumeBody).decode
_decode_weights = msgspec.json.Decoder(wire.WeightsBody).decode


class EngineRoutes:
    """The handlers."""

    def __init__(self, setup: ApiSetup) -> None:
        self._engines = setup.pipeline.engines
        self._admission = setup.turns.admission

    async def pause(self, http: web.Request) -> web.Response:
        """`POST /engines/pause`: no engine runs a step until it is resumed."""
        _check_operator(http)
        body = await read_request(http, MAX_BODY_BYTES, _parse_pause)
        return await self._control(http, body.model, EngineControl("pause", body.mode))

    async def resume(self, http: web.Request) -> web.Response:
        """`POST /engines/resume`: the engines go on."""
        _check_operator(http)
        body = await read_request(http, MAX_BODY_BYTES, _parse_resume)
        return await self._control(http, body.model, EngineControl("resume"))

    async def weights(self, http: web.Request) -> web.Response:
        """`POST /engines/weights`: the engines load other weights, between two steps."""
        _check_operator(http)
        body = await read_request(http, MAX_BODY_BYTES, _parse_weights)
        control = EngineControl("weights", source=body.source, version=body.version or 0)
        return await self._control(http, body.model, control)

    async def _control(self, http: web.Request, model: str, control: EngineControl) -> web.Response:
        """Applies a control to all workers of a model. Raises NotFound, Unavailable, and Invalid
        for an adapter."""
        context = http[REQUEST_CONTEXT]
        card = self._admission.resolve(model, context.caller)
        if card.adapter:
            raise Invalid(f"model: {model} is an adapter, not a model", param="model")
        states = await self._engines.control(card.name, control)
        if any(state.error for state in states):
            error = ErrorInfo(ErrorKind.ENGINE, _failures(states))
            reply = union_reply(error, context.request_id, FAILED)
            return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        workers = [
            wire.Worker(state.worker, state.weights_version, state.paused) for state in states
        ]
        return json_response(wire.Workers(workers))


def _check_operator(http: web.Request) -> None:
    if not http[REQUEST_CONTEXT].caller.is_operator:
        raise Forbidden("Your API key is not an operator's (operator=yes).")


def _failures(states: list[EngineState]) -> str:
    """Names each worker, and what it has or why it has failed."""
    texts: list[str] = []
    for state in states:
        has = f"has version {state.weights_version}"
        texts.append(f"{state.worker}: {state.error.message if state.error else has}")
    return "; ".join(texts)


def _parse_pause(body: bytes, _headers: Headers) -> wire.PauseBody:
    return decode_body(_decode_pause, body, _explain)


def _parse_resume(body: bytes, _headers: Headers) -> wire.ResumeBody:
    return decode_body(_decode_resume, body, _explain)


def _parse_weights(body: bytes, _headers: Headers) -> wire.WeightsBody:
    return decode_body(_decode_weights, body, _explain)


def _explain(_body: bytes, message: str) -> Invalid:
    return Invalid(f"The body is not valid: {message}")


def _add_routes(setup: ApiSetup) -> None:
    routes = EngineRoutes(setup)
    setup.app.router.add_post(f"{PATH}/pause", routes.pause)
    setup.app.router.add_post(f"{PATH}/resume", routes.resume)
    setup.app.router.add_post(f"{PATH}/weights", routes.weights)


def _operation(name: str, summary: str, body: type, **example: str) -> Operation:
    return Operation(
        f"{PATH}/{name}",
        summary,
        body=body,
        example={"model": "your-model", **example},
        answer=wire.Workers,
    )


API = Api(
    name="Engines",
    title="Engines",
    errors=replace(SHARED, statuses=SHARED.statuses | {FAILED}),
    operations=(
        _operation("pause", "Pause the engines of a model", wire.PauseBody, mode="keep"),
        _operation("resume", "Resume the engines of a model", wire.ResumeBody),
        _operation(
            "weights", "Load other weights in a model's engines", wire.WeightsBody, source="step-12"
        ),
    ),
    add_routes=_add_routes,
)

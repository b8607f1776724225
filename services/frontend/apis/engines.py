"""Operations on the engines of all workers of a model, for callers with an operator's key.

POST /engines/pause     {"model", "mode"}
POST /engines/resume    {"model"}
POST /engines/weights   {"model", "source", "version"}

Each answers {"workers": [{"id", "weights_version", "paused", "error"}]} when every worker has done
it, or with status 502 and an error that names each worker that has not, and why.
"""

from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from schemas.control import EngineAction, EngineControl, EngineState
from schemas.errors import ErrorInfo, ErrorKind, Forbidden, Invalid
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, json_response
from services.frontend.apis.shared.decode import PlainBody
from services.frontend.apis.shared.errors import SHARED, union_reply
from services.frontend.apis.shared.http_answer import read_request
from services.frontend.http.request_context import REQUEST_CONTEXT

PATH = "/engines"
MAX_BODY_BYTES = 64 * 1024
FAILED = 502
"""The status where a worker has not done what it should."""


class ResumeBody(Struct, forbid_unknown_fields=True):
    """Lets a model's engines go on."""

    model: str


class PauseBody(ResumeBody, forbid_unknown_fields=True):
    """Stops a model's engines between two steps."""

    mode: Literal["keep", "abort"] = "keep"
    """`keep`: open turns wait and go on; `abort`: they end with an error that clients retry."""


class UpdateBody(ResumeBody, forbid_unknown_fields=True):
    """Loads other weights in a model's engines."""

    source: Annotated[str, Meta(min_length=1)]
    """The directory that has them, below the workers' `weights_dir`."""
    version: Annotated[int, Meta(ge=1, le=2**53 - 1)]
    """The number of the weights, greater than that of every worker's. Workers that have loaded it
    from this source have done it already."""


class Workers(Struct, frozen=True):
    """All workers of the model, after the operation."""

    workers: list[EngineState]


_BODIES: dict[EngineAction, type[ResumeBody]] = {
    "pause": PauseBody,
    "resume": ResumeBody,
    "weights": UpdateBody,
}
"""The body of each operation: the model, and fields of the `EngineControl`."""


class EngineRoute:
    """One of the operations."""

    def __init__(self, setup: ApiSetup, action: EngineAction) -> None:
        self._pipeline = setup.pipeline
        self._admission = setup.turns.admission
        self._action: EngineAction = action
        self._body = PlainBody(_BODIES[action])

    async def handle(self, http: web.Request) -> web.Response:
        """Sends a control to all workers of a model. Raises Forbidden, NotFound, Unavailable, and
        Invalid for a body, or for an adapter."""
        context = http[REQUEST_CONTEXT]
        if not context.caller.is_operator:
            raise Forbidden("Your API key is not an operator's (operator=yes).", "operator")
        body = await read_request(http, MAX_BODY_BYTES, self._body.parse)
        card = self._admission.resolve(body.model, context.caller)
        if card.adapter:
            raise Invalid(f"model: {body.model} is an adapter, not a model", param="model")

        fields = asdict(body)
        del fields["model"]
        states = await self._pipeline.control(card.name, EngineControl(self._action, **fields))
        if any(state.error for state in states):
            error = ErrorInfo(ErrorKind.ENGINE, "; ".join(map(_describe, states)))
            reply = union_reply(error, context.request_id, FAILED)
            return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        return json_response(Workers(states))


def _describe(state: EngineState) -> str:
    """Names a worker, and what it has or why it has failed."""
    has = f"has version {state.weights_version}"
    return f"{state.worker}: {state.error.message if state.error else has}"


def _add_routes(setup: ApiSetup) -> None:
    for action in _BODIES:
        setup.app.router.add_post(f"{PATH}/{action}", EngineRoute(setup, action).handle)


def _operation(action: EngineAction, summary: str, **example: str | int) -> Operation:
    return Operation(
        f"{PATH}/{action}",
        summary,
        body=_BODIES[action],
        example={"model": "your-model", **example},
        answer=Workers,
    )


API = Api(
    name="Engines",
    title="Engines",
    errors=replace(SHARED, statuses=SHARED.statuses | {FAILED}),
    operations=(
        _operation("pause", "Pause the engines of a model", mode="keep"),
        _operation("resume", "Resume the engines of a model"),
        _operation(
            "weights", "Load other weights in a model's engines", source="step-12", version=12
        ),
    ),
    add_routes=_add_routes,
)

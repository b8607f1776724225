"""Answers what the caller's own key has used: GET /v1/usage."""

from aiohttp import web
from msgspec import Struct

from schemas.control import UsedTokens
from schemas.errors import Forbidden
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, json_response
from services.frontend.apis.shared.shared_errors import SHARED
from services.frontend.http.middleware import REQUEST_CONTEXT
from services.frontend.turns.key_usage import KEY_USAGE, add

PATH = "/v1/usage"


class UsageCounts(Struct):
    """Turns, and their tokens as the answers have counted them."""

    turns: int
    prompt_tokens: int
    cached_tokens: int
    """The part of `prompt_tokens` that was not computed again."""
    output_tokens: int
    reasoning_tokens: int
    """The part of `output_tokens` inside reasoning."""


class ModelUsage(UsageCounts):
    """What was used of one model."""

    model: str


class KeyReport(Struct):
    """What the key of the request has used, with all keys of its name."""

    key: str | None
    """The key's name; null on a server without keys."""
    since: int
    """When the first of the counting frontends was started: Unix time in seconds. Those that have
    ended since then are not included."""
    frontends: int
    """How many frontends are included."""
    complete: bool
    """Whether these are all frontends that run."""
    total: UsageCounts
    models: list[ModelUsage]


class UsageRoute:
    """The handler."""

    def __init__(self, setup: ApiSetup) -> None:
        self._usage = setup.app[KEY_USAGE]

    async def handle(self, http: web.Request) -> web.Response:
        """`GET /v1/usage`. Raises RateLimited, and Forbidden for the agent of a rollout."""
        caller = http[REQUEST_CONTEXT].caller
        if caller.rollout is not None:
            raise Forbidden("A rollout's agent has no key of its own.", "rollout")
        caller.limiter.count()
        used = await self._usage.total(caller.tenant)
        total = UsedTokens()
        for model in used.models.values():
            total = add(total, model.turns, model.usage)
        report = KeyReport(
            key=caller.tenant,
            since=int(used.since),
            frontends=used.frontends,
            complete=not used.missing,
            total=UsageCounts(*_counts(total)),
            models=[ModelUsage(*_counts(used.models[name]), name) for name in sorted(used.models)],
        )
        return json_response(report)


def _counts(used: UsedTokens) -> tuple[int, int, int, int, int]:
    usage = used.usage
    return used.turns, usage.prompt, usage.cached, usage.output, usage.reasoning


def _add_routes(setup: ApiSetup) -> None:
    setup.app.router.add_get(PATH, UsageRoute(setup).handle)


API = Api(
    name="Usage",
    title="Usage",
    errors=SHARED,
    operations=(Operation(PATH, "What this key has used", method="get", answer=KeyReport),),
    add_routes=_add_routes,
)

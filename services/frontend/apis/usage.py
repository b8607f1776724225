"""Answers what the caller's own key has used: GET /v1/usage."""

from collections import Counter, defaultdict

from aiohttp import web
from msgspec import Struct

from schemas.errors import Forbidden
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, json_response
from services.frontend.apis.shared.shared_errors import SHARED
from services.frontend.http.middleware import REQUEST_CONTEXT
from services.frontend.turns.key_usage import KEY_USAGE

PATH = "/v1/usage"


class UsageCounts(Struct):
    """Turns, and their tokens as the answers have counted them."""

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """The part of `prompt_tokens` that was not computed again."""
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """The part of `output_tokens` inside reasoning."""


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
    models: dict[str, UsageCounts]


async def _report(http: web.Request) -> web.Response:
    """Raises RateLimited, and Forbidden for the agent of a rollout."""
    caller = http[REQUEST_CONTEXT].caller
    if caller.rollout is not None:
        raise Forbidden("A rollout's agent has no key of its own.", "rollout")
    caller.limiter.count()
    reports, complete = await http.app[KEY_USAGE].read(caller.tenant)
    total: Counter[str] = Counter()
    models: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for report in reports:
        for model, counts in report.models.items():
            models[model].update(counts)
            total.update(counts)
    answer = KeyReport(
        key=caller.tenant,
        since=int(min(report.since for report in reports)),
        frontends=len(reports),
        complete=complete,
        total=UsageCounts(**total),
        models={model: UsageCounts(**counts) for model, counts in sorted(models.items())},
    )
    return json_response(answer)


def _add_routes(setup: ApiSetup) -> None:
    setup.app.router.add_get(PATH, _report)


API = Api(
    name="Usage",
    title="Usage",
    errors=SHARED,
    operations=(Operation(PATH, "What this key has used", method="get", answer=KeyReport),),
    add_routes=_add_routes,
)

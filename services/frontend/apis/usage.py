"""Answers what the caller's own key has used, and operators what all have: GET /v1/usage."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from schemas.errors import Forbidden
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, Query, json_response
from services.frontend.apis.shared.shared_errors import SHARED
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.turns.key_usage import KeyUsage

PATH = "/v1/usage"
ALL = Query("all", {"type": "boolean"}, "With any value, of an operator's key: what all keys used.")


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
    """The usage of the request's key, together with all keys of its name."""

    key: str | None
    """The key's name; null on a server without keys, and for all."""
    since: int
    """When the first of the counting frontends was started: Unix time in seconds. Those that have
    ended since then are not included."""
    frontends: int
    """How many frontends are included."""
    complete: bool
    """Whether these are all frontends that run."""
    total: UsageCounts
    models: dict[str, UsageCounts]
    keys: dict[str, dict[str, UsageCounts]] | UnsetType = UNSET
    """With `all`: the counts of each key's name, by model. `total` and `models` are their sums."""


class UsageRoutes:
    """The handlers."""

    def __init__(self, usage: KeyUsage) -> None:
        self._usage = usage

    async def report(self, http: web.Request) -> web.Response:
        """`GET /v1/usage`. Raises RateLimited; Forbidden for the agent of a rollout, and for `all`
        without an operator's key."""
        caller = http[REQUEST_CONTEXT].caller
        if caller.rollout is not None:
            raise Forbidden("A rollout's agent has no key of its own.", "rollout")
        every = "all" in http.query
        if every and not caller.is_operator:
            raise Forbidden("Your API key is not an operator's (operator=yes).", "operator")
        caller.limiter.count()
        reports, complete = await self._usage.read(caller.tenant, every=every)
        total: Counter[str] = Counter()
        models: defaultdict[str, Counter[str]] = defaultdict(Counter)
        keys: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(_by_model)
        for report in reports:
            for key, used in (report.keys or {"": report.models}).items():
                for model, counts in used.items():
                    for sums in (keys[key][model], models[model], total):
                        sums.update(counts)
        answer = KeyReport(
            key=None if every else caller.tenant,
            since=int(min(report.since for report in reports)),
            frontends=len(reports),
            complete=complete,
            total=_known_counts(total),
            models=_counts(models),
        )
        if every:
            answer.keys = {key: _counts(used) for key, used in sorted(keys.items())}
        return json_response(answer)


def _by_model() -> defaultdict[str, Counter[str]]:
    return defaultdict(Counter)


def _counts(models: Mapping[str, Counter[str]]) -> dict[str, UsageCounts]:
    return {model: _known_counts(counts) for model, counts in sorted(models.items())}


def _known_counts(counts: Counter[str]) -> UsageCounts:
    """Leaves out counts that this release does not have: frontends of others may send some."""
    return msgspec.convert(counts, UsageCounts)


def _add_routes(setup: ApiSetup) -> None:
    setup.app.router.add_get(PATH, UsageRoutes(setup.turns.usage).report)


API = Api(
    name="Usage",
    title="Usage",
    errors=SHARED,
    operations=(
        Operation(PATH, "What this key has used", method="get", answer=KeyReport, query=(ALL,)),
    ),
    add_routes=_add_routes,
)

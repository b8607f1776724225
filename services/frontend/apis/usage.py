"""Answers what the caller's own key has used, and operators what all have: GET /v1/usage."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from schemas.errors import Forbidden
from schemas.notices import UsageReported
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, Query, json_response
from services.frontend.apis.shared.errors import SHARED
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.turns.key_usage import KeyUsage

Usages: TypeAlias = Mapping[str, Mapping[str, int]]
"""The counts of each model, as a frontend reports them."""
Sums: TypeAlias = defaultdict[str, Counter[str]]
"""The sums of counts of each model."""

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
        of_all = "all" in http.query
        if of_all and not caller.is_operator:
            raise Forbidden("Your API key is not an operator's (operator=yes).", "operator")
        caller.limiter.count()

        reports, complete = await self._usage.read(caller.tenant, every=of_all)
        keys = _sums_by_key(reports)
        models = _add_up(keys.values())
        answer = KeyReport(
            key=None if of_all else caller.tenant,
            since=int(min(report.since for report in reports)),
            frontends=len(reports),
            complete=complete,
            total=_known_counts(sum(models.values(), Counter())),
            models=_counts(models),
        )
        if of_all:
            answer.keys = {key: _counts(keys[key]) for key in sorted(keys)}
        return json_response(answer)


def _sums_by_key(reports: Iterable[UsageReported]) -> dict[str, Sums]:
    """Adds up what frontends report. A key without a name is ""."""
    usages: defaultdict[str, list[Usages]] = defaultdict(list)
    for report in reports:
        for key, models in (report.keys or {"": report.models}).items():
            usages[key].append(models)
    return {key: _add_up(used) for key, used in usages.items()}


def _add_up(usages: Iterable[Usages]) -> Sums:
    sums: Sums = defaultdict(Counter)
    for models in usages:
        for model, counts in models.items():
            sums[model].update(counts)
    return sums


def _counts(models: Sums) -> dict[str, UsageCounts]:
    return {model: _known_counts(models[model]) for model in sorted(models)}


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

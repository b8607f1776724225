"""Counts what each key has used, by model: for metrics, and for the key's own holder.

Each frontend counts for itself, since its start. A holder gets the sum over all frontends: they
answer each other's requests by notices.
"""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from schemas.control import UsageNotice, UsageReported, UsageRequested, UsedTokens
from schemas.events import Usage

ANSWER_S = 1.0
"""How long a frontend waits for the others' numbers."""
OTHER = "other"
"""The label of keys that have none of their own."""
_COUNTERS = (
    ("turnwire_key_turns", "Turns of a key."),
    ("turnwire_key_prompt_tokens", "Tokens of a key's prompts."),
    ("turnwire_key_cached_tokens", "Those of them that engines found in their caches."),
    ("turnwire_key_generation_tokens", "Tokens decoded for a key."),
    ("turnwire_key_reasoning_tokens", "Those of them inside reasoning."),
)


def add(one: UsedTokens, turns: int, usage: Usage) -> UsedTokens:
    """Returns the sum."""
    return UsedTokens(one.turns + turns, one.usage + usage)


class KeyCounts(Collector):
    """The counts of one frontend, by key holder and model. Those of removed keys stay."""

    def __init__(self, max_names: int) -> None:
        """`max_names`: how many holders have their names in metrics; later ones are `OTHER`."""
        self.since = time.time()
        self._max_names = max_names
        self._used: dict[str | None, dict[str, UsedTokens]] = {}

    def count(self, tenant: str | None, model: str, usage: Usage) -> None:
        """Counts a turn. `tenant`: the holder of the key; None without keys."""
        models = self._used.setdefault(tenant, {})
        models[model] = add(models.get(model, UsedTokens()), 1, usage)

    def of(self, tenant: str | None) -> Mapping[str, UsedTokens]:
        """Returns what a holder has used of each model."""
        return self._used.get(tenant, {})

    @override
    def collect(self) -> Iterator[Metric]:
        labelled: dict[tuple[str, str], UsedTokens] = {}
        for number, (tenant, models) in enumerate(self._used.items()):
            key = OTHER
            if tenant is None:
                key = ""
            elif number < self._max_names:
                key = tenant
            for model, used in models.items():
                before = labelled.get((key, model), UsedTokens())
                labelled[key, model] = add(before, used.turns, used.usage)
        for place, (name, text) in enumerate(_COUNTERS):
            family = CounterMetricFamily(name, text, labels=["key", "model"])
            for labels, used in labelled.items():
                usage = used.usage
                values = (used.turns, usage.prompt, usage.cached, usage.output, usage.reasoning)
                family.add_metric(labels, values[place])
            yield family


class OtherFrontends(ABC):
    """The other frontends of the deployment."""

    id: str
    """The name of this frontend on the bus."""

    @abstractmethod
    def living(self) -> Sequence[str]:
        """Returns the ids of the others that run."""

    @abstractmethod
    def publish_notice(self, notice: UsageNotice) -> None:
        """Sends a notice to all of them."""


class NoOthers(OtherFrontends):
    """Stands for them where there is one frontend."""

    id = ""

    @override
    def living(self) -> Sequence[str]:
        return ()

    @override
    def publish_notice(self, notice: UsageNotice) -> None:
        raise NotImplementedError


@dataclass
class TotalUsage:
    """What a key has used, over all frontends."""

    since: float
    """When the first of them began to count: Unix time in seconds."""
    models: dict[str, UsedTokens] = field(default_factory=dict)
    frontends: int = 0
    """How many are included."""
    missing: set[str] = field(default_factory=set)
    """The frontends that have not answered."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when none is missing."""

    def add(self, report: UsageReported) -> None:
        """Adds the numbers of one frontend."""
        self.frontends += 1
        self.since = min(self.since, report.since)
        for model, used in report.models.items():
            before = self.models.get(model, UsedTokens())
            self.models[model] = add(before, used.turns, used.usage)
        self.missing.discard(report.frontend)
        if not self.missing:
            self.complete.set()


class KeyUsage:
    """What keys have used, in this frontend and in all."""

    def __init__(self, counts: KeyCounts, others: OtherFrontends) -> None:
        self.counts = counts
        self._others = others
        self._open: dict[str, TotalUsage] = {}
        """Requests that wait for other frontends, by id."""

    async def total(self, tenant: str | None) -> TotalUsage:
        """Returns what a holder has used. Waits for the other frontends, at most `ANSWER_S`."""
        total = TotalUsage(self.counts.since, missing=set(self._others.living()))
        total.add(self._report("", tenant))
        if total.complete.is_set():
            return total
        id = secrets.token_hex(8)
        self._open[id] = total
        try:
            self._others.publish_notice(UsageRequested(id, tenant))
            async with asyncio.timeout(ANSWER_S):
                await total.complete.wait()
        except TimeoutError:
            pass
        finally:
            del self._open[id]
        return total

    def apply(self, notice: UsageNotice) -> None:
        """Answers another frontend, or takes its answer. Own notices, which come back, have no
        effect."""
        if isinstance(notice, UsageRequested):
            if notice.id not in self._open:
                self._others.publish_notice(self._report(notice.id, notice.tenant))
        elif notice.id in self._open and notice.frontend in self._open[notice.id].missing:
            self._open[notice.id].add(notice)

    def _report(self, id: str, tenant: str | None) -> UsageReported:
        models = dict(self.counts.of(tenant))
        return UsageReported(id, self._others.id, self.counts.since, models)


KEY_USAGE: web.AppKey[KeyUsage] = web.AppKey("key_usage", KeyUsage)
"""The usage of an application's keys."""

"""Counts what each key has used, by model: for metrics, its own holder, and operators.

Each frontend counts for itself, since its start. A holder gets the numbers of all frontends: they
answer each other's requests by notices.
"""

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from schemas.events import Usage
from schemas.notices import UsageNotice, UsageReported, UsageRequested
from services.frontend.peers import Peers

ANSWER_S = 1.0
"""How long a frontend waits for the others' numbers."""
OTHER = "other"
"""The label of keys that have none of their own."""
_METRICS = {
    "turns": ("turnwire_key_turns", "Turns of a key."),
    "prompt_tokens": ("turnwire_key_prompt_tokens", "Tokens of a key's prompts."),
    "cached_tokens": ("turnwire_key_cached_tokens", "Those that engines found in their caches."),
    "output_tokens": ("turnwire_key_generation_tokens", "Tokens decoded for a key."),
    "reasoning_tokens": ("turnwire_key_reasoning_tokens", "Those inside reasoning."),
}
"""Name and help of the metric of each count."""


class KeyUsage(Collector):
    """The usage of keys in this frontend, and in all. The counts of removed keys stay."""

    def __init__(self, max_names: int, peers: Peers) -> None:
        """`max_names`: how many holders have their names in metrics; later ones are `OTHER`."""
        self._peers = peers
        self._since = time.time()
        self._max_names = max_names
        self._used: dict[str | None, defaultdict[str, Counter[str]]] = {}
        """Holder, None without keys → model → counts."""
        self._open: dict[str, asyncio.Queue[UsageReported]] = {}
        """The answers of other frontends, by the id of the request."""

    def count(self, tenant: str | None, model: str, usage: Usage) -> None:
        """Counts an answer. `tenant`: the holder of the key; None without keys."""
        self._used.setdefault(tenant, defaultdict(Counter))[model].update(
            turns=1,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            output_tokens=usage.output,
            reasoning_tokens=usage.reasoning,
        )

    async def read(
        self, tenant: str | None, *, every: bool = False
    ) -> tuple[list[UsageReported], bool]:
        """Returns what a holder has used in each frontend, with `every` what each has, and whether
        these are all frontends. Waits for the others at most `ANSWER_S`."""
        request = UsageRequested(secrets.token_hex(8), tenant, every)
        reports = [self._report(request)]
        missing = set(self._peers.living())
        answers = self._open[request.id] = asyncio.Queue()
        try:
            self._peers.publish(request)
            async with asyncio.timeout(ANSWER_S):
                while missing:
                    report = await answers.get()
                    if every and report.keys is None:
                        continue
                    reports.append(report)
                    missing.discard(report.frontend)
        except TimeoutError:
            pass
        finally:
            del self._open[request.id]
        return reports, not missing

    def apply(self, notice: UsageNotice) -> None:
        """Answers another frontend, or takes its answer. Own requests, which come back, have no
        effect."""
        if isinstance(notice, UsageRequested):
            if notice.id not in self._open:
                self._peers.publish(self._report(notice))
        elif notice.id in self._open:
            self._open[notice.id].put_nowait(notice)

    def _report(self, request: UsageRequested) -> UsageReported:
        report = UsageReported(request.id, self._peers.id, self._since)
        if request.every:
            keys = {tenant or "": self._models(tenant) for tenant in self._used}
            return replace(report, keys=keys)
        return replace(report, models=self._models(request.tenant))

    def _models(self, tenant: str | None) -> dict[str, dict[str, int]]:
        return {model: dict(counts) for model, counts in self._used.get(tenant, {}).items()}

    @override
    def collect(self) -> Iterator[Metric]:
        labelled: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for number, (tenant, models) in enumerate(self._used.items()):
            key = tenant or ""
            if tenant is not None and number >= self._max_names:
                key = OTHER
            for model, counts in models.items():
                labelled[key, model].update(counts)
        for name, (metric, text) in _METRICS.items():
            family = CounterMetricFamily(metric, text, labels=["key", "model"])
            for labels, counts in labelled.items():
                family.add_metric(labels, counts[name])
            yield family

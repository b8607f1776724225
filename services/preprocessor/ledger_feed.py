"""The ledger on the bus: hears of turns that ended, and asks the bucket for those that it has not heard of.

What comes in is used only if it was signed with this deployment's key. Lost, repeated or foreign messages cost speed.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from schemas import subjects
from schemas.conversation import Conversation, ToolSpec
from schemas.errors import TurnwireError
from schemas.ledger import LedgerEntry
from services.parser.commit import Notary
from services.preprocessor.ledger import Found, Ledger, Recall
from services.preprocessor.messages import Unseal
from services.runtime.bus import Message
from services.runtime.kv import Bucket
from services.runtime.metrics import register
from services.runtime.process import Process

FETCH_TIMEOUT_S = 0.5
"""A prompt waits no longer for turns that are not in memory."""
FETCH_AT_ONCE = 64
MAX_FETCHED = 1024
"""Turns of one conversation that are asked for, newest first."""
ABSENT_S = 60.0
"""A turn that was not there is not asked for again before."""
MAX_ABSENT = 65_536
QUIET_S = 5.0
"""A bucket that did not answer is left alone for so long."""


class Gap(Exception):
    """Turns that are not in memory and may be in the bucket."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        super().__init__(f"{len(keys)} turns")
        self.keys = keys


class LedgerFeed:
    """One preprocessor's ledger."""

    def __init__(
        self, process: Process, ledger: Ledger, notary: Notary, unseal: Unseal | None, bucket: Bucket | None
    ) -> None:
        """`bucket` None: turns live in memory only."""
        self._process = process
        self._ledger = ledger
        self._notary = notary
        self._unseal = unseal
        self._bucket = bucket
        self._absent: OrderedDict[bytes, float] = OrderedDict()
        self._quiet_until = 0.0
        self.outcomes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.on_entry: list[Callable[[LedgerEntry], None]] = []
        """Called with every turn that ended and is new here."""
        register(process.metrics, LedgerCollector(ledger, self))

    async def start(self) -> None:
        """Listens for turns that end."""
        await self._process.subscribe(subjects.ledger(self._ledger.model.name), self._heard)

    def remember(self, conversation: Conversation, tools: list[ToolSpec]) -> Recall:
        """What memory has; for any thread. Raises Gap where the bucket may have more."""
        recall = self._ledger.recall(conversation, tools, self._unseal)
        if self._bucket is not None and (keys := [key for key in recall.missing if key not in self._absent]):
            raise Gap(keys)
        return recall

    def remember_known(self, conversation: Conversation, tools: list[ToolSpec]) -> Recall:
        """What memory has."""
        return self._ledger.recall(conversation, tools, self._unseal)

    async def fetch(self, keys: Sequence[bytes]) -> None:
        """Brings turns from the bucket into memory, as far as they are there and come in time. Never raises."""
        now = asyncio.get_running_loop().time()
        while self._absent and next(iter(self._absent.values())) < now - ABSENT_S:
            self._absent.popitem(last=False)
        if self._bucket is None or now < self._quiet_until:
            return
        gate = asyncio.Semaphore(FETCH_AT_ONCE)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                for key in keys[: -MAX_FETCHED - 1 : -1]:
                    tasks.create_task(self._fetch_one(self._bucket, key, gate))
        except TimeoutError:
            self._silent("it does not answer in time")

    def count(self, found: Found) -> None:
        """Notes what a turn's prompt was made of."""
        self.outcomes[found.outcome] += 1
        self.tokens["ledger"] += found.reused
        self.tokens["text"] += len(found.ids) - found.reused

    async def _fetch_one(self, bucket: Bucket, key: bytes, gate: asyncio.Semaphore) -> None:
        async with gate:
            if asyncio.get_running_loop().time() < self._quiet_until:
                return
            try:
                data = await bucket.get(key.hex())
            except TurnwireError as error:
                self._silent(error.info.message)
                return
        if data is None or not self._take(data, "fetched"):
            self._absent[key] = asyncio.get_running_loop().time()
            if len(self._absent) > MAX_ABSENT:
                self._absent.popitem(last=False)

    def _silent(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._process.log.warning("ledger.bucket_silent", reason=reason)
        self._quiet_until = now + QUIET_S

    def _heard(self, message: Message) -> None:
        self._take(message.data, "heard")

    @property
    def ledger(self) -> Ledger:
        """What is behind it."""
        return self._ledger

    def _take(self, data: bytes, how: str) -> bool:
        entry = self._notary.read(data)
        if entry is None:
            self.messages["foreign"] += 1
            return False
        if not self._ledger.add(entry):
            self.messages["repeated"] += 1
            return bool(self._ledger.entries.find(entry.key))
        self._absent.pop(entry.key, None)
        self.messages[how] += 1
        if how == "heard":
            for listener in self.on_entry:
                listener(entry)
        return True


class LedgerCollector(Collector):
    """`turnwire_ledger_*`."""

    def __init__(self, ledger: Ledger, feed: LedgerFeed) -> None:
        self._ledger = ledger
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """One reading of every counter."""
        feed = self._feed
        yield _labelled("turnwire_ledger_turns", "Prompts by how their newest turn fared.", "outcome", feed.outcomes)
        yield _labelled("turnwire_ledger_prompt_tokens", "Prompt tokens by origin.", "source", feed.tokens)
        yield _labelled("turnwire_ledger_messages", "Entries that came in.", "kind", feed.messages)
        yield GaugeMetricFamily("turnwire_ledger_entries", "Turns in memory.", len(self._ledger.entries))
        yield GaugeMetricFamily("turnwire_ledger_bytes", "Memory that turns take.", self._ledger.entries.size)


def _labelled(name: str, text: str, label: str, counts: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family

"""Fills the ledger of one preprocessor: receives the entries of turns that end, fetches others from
the bucket.

`services/ledger/turn_ledger.py` finds the turns of a conversation in it.

An entry is used only if it was signed with this deployment's key. Lost, repeated or foreign entries
cost only speed.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from prometheus_client import Counter
from typing_extensions import override

from schemas import subjects
from schemas.conversation import ToolSpec
from schemas.errors import TurnwireError
from schemas.ledger import LedgerEntry
from services.ledger.prompt.prompts import EncodedPrompt
from services.ledger.signer import EntrySigner
from services.ledger.turn_ledger import Ledger, TurnLedger
from services.ledger.turns.turn import TurnOutput
from services.runtime.nats.bus import Delivery
from services.runtime.observability.metrics import CountCollector, Reading
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket

FETCH_TIMEOUT_S = 0.5
"""Limit of the time that a prompt waits for turns from the bucket."""
FETCH_AT_ONCE = 64
MAX_FETCHED = 1024
"""Limit of turns of one conversation that are fetched, newest first."""
FETCHED_S = 60.0
"""Time before turns of the same key are fetched again."""
MAX_FETCHED_KEYS = 65_536
SILENT_S = 5.0
"""Time without requests to a bucket that did not answer."""


OnEntry: TypeAlias = Callable[[LedgerEntry], None]


class FetchedKey(NamedTuple):
    """The result of fetching the turns of a key."""

    until: float
    """The loop's time from which on the key may be fetched again."""
    any_turns: bool
    """The bucket had turns of it."""


_NEVER = FetchedKey(0.0, False)


class LedgerReader:
    """The ledger of one preprocessor, and its side of the bus. This one has no turns; a
    `BusLedgerReader` has those that end."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        """The turns in memory; for any thread."""

    async def start(self) -> None:
        """Subscribes to the entries of turns that end."""

    async def fetch(self, keys: Sequence[bytes]) -> bool:
        """Copies the turns of these keys from the bucket into memory, those that arrive in time,
        unless they were fetched lately. Returns whether memory may have more turns now. Never
        raises."""
        return False

    def count(self, prompt: EncodedPrompt) -> None:
        """Counts the tokens of a turn's prompt by origin, if it was looked up."""

    def listen(self, on_entry: OnEntry) -> None:
        """Has `on_entry` called with the entry of every turn that ends, once."""

    def read_turn(self, entry: LedgerEntry, tools: list[ToolSpec]) -> TurnOutput | None:
        """The output of the model in an entry's turn; None where its tokens cannot be read.
        `tools`: as the model sees them."""
        return None


class BusLedgerReader(LedgerReader):
    """Keeps one preprocessor's ledger filled."""

    def __init__(
        self,
        process: Process,
        ledger: TurnLedger,
        signer: EntrySigner,
        bucket: Bucket | None,
    ) -> None:
        """`bucket` None: turns are kept in memory only."""
        super().__init__(ledger)
        ledger.entries.shared = bucket is not None
        self.ledger: TurnLedger = ledger
        self._listeners: list[OnEntry] = []
        self._process = process
        self._signer = signer
        self._bucket = bucket
        self._loop = asyncio.get_running_loop()
        self._fetched: dict[bytes, FetchedKey] = {}
        self._silent_until = 0.0
        metrics = process.metrics
        self._outcomes = Counter(
            "turnwire_ledger_turns",
            "Prompts by the outcome for their newest turn.",
            ["outcome"],
            registry=metrics,
        )
        self._tokens = Counter(
            "turnwire_ledger_prompt_tokens",
            "Prompt tokens by origin.",
            ["source"],
            registry=metrics,
        )
        self._messages = Counter(
            "turnwire_ledger_messages", "Entries that arrived.", ["kind"], registry=metrics
        )
        readings = {
            "turnwire_ledger_entries": Reading("Turns in memory.", ledger.entries, "__len__"),
            "turnwire_ledger_bytes": Reading("Memory that turns take.", ledger.entries, "size"),
        }
        metrics.register(CountCollector(readings))
        process.on_reconnect.append(self._doubt)

    @override
    async def start(self) -> None:
        await self._process.subscribe(subjects.ledger(self.ledger.model.name), self._on_entry)

    @override
    async def fetch(self, keys: Sequence[bytes]) -> bool:
        now = self._loop.time()
        if self._bucket is None or now < self._silent_until:
            return False
        unfetched = [key for key in keys if self._fetched.get(key, _NEVER).until <= now]
        if not unfetched:
            return False
        newest_first = unfetched[: -MAX_FETCHED - 1 : -1]
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                await self._fetch_all(self._bucket, newest_first)
        except TimeoutError:
            self._bucket_silent("it does not answer in time")
        except TurnwireError as error:
            self._bucket_silent(error.info.message)
        return True

    @override
    def count(self, prompt: EncodedPrompt) -> None:
        if not prompt.outcome:
            return
        self._outcomes.labels(prompt.outcome).inc()
        self._tokens.labels("ledger").inc(prompt.reused)
        self._tokens.labels("text").inc(len(prompt.ids) - prompt.reused)

    @override
    def listen(self, on_entry: OnEntry) -> None:
        self._listeners.append(on_entry)

    @override
    def read_turn(self, entry: LedgerEntry, tools: list[ToolSpec]) -> TurnOutput | None:
        return self.ledger.reader.read_entry(entry, tools)

    async def _fetch_all(self, bucket: Bucket, keys: Sequence[bytes]) -> None:
        """Fetches the turns of these keys."""
        if not await bucket.any_members([key.hex() for key in keys]):
            self._note_fetched(keys, any_turns=False)  # a conversation from elsewhere
            return
        gate = asyncio.Semaphore(FETCH_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for key in keys:
                tasks.create_task(self._fetch_one(bucket, key, gate))

    async def _fetch_one(self, bucket: Bucket, key: bytes, gate: asyncio.Semaphore) -> None:
        async with gate:
            if self._loop.time() < self._silent_until:
                return
            try:
                entries = await bucket.members(key.hex())
            except TurnwireError as error:
                self._bucket_silent(error.info.message)
                return
        for data in entries:
            # rare: a turn's tokens are not in memory, and come from the bucket
            self._add(data, "fetched")
        self._note_fetched([key], any_turns=bool(entries))

    def _note_fetched(self, keys: Sequence[bytes], *, any_turns: bool) -> None:
        if len(self._fetched) > MAX_FETCHED_KEYS:
            self._fetched.clear()  # at worst they are fetched again
        fetched = FetchedKey(self._loop.time() + FETCHED_S, any_turns)
        for key in keys:
            self._fetched[key] = fetched
            self.ledger.entries.set_complete(key)

    def _doubt(self) -> None:
        """Notes that entries may have been missed while the connection was down."""
        self._fetched.clear()
        self.ledger.entries.doubt()

    def _bucket_silent(self, reason: str) -> None:
        now = self._loop.time()
        if now >= self._silent_until:
            # rare: the bucket of the ledger does not answer
            self._process.log.warning("ledger.bucket_silent", reason=reason)
        self._silent_until = now + SILENT_S

    def _on_entry(self, delivery: Delivery) -> None:
        """Receives the entry of a turn that has ended."""
        entry = self._add(delivery.data, "received")
        if entry is None:
            return
        fetched = self._fetched.get(entry.key, _NEVER)
        nothing_was_there = fetched.until > self._loop.time() and not fetched.any_turns
        if nothing_was_there:
            self.ledger.entries.set_complete(entry.key)
        for on_entry in self._listeners:
            on_entry(entry)

    def _add(self, data: bytes, origin: str) -> LedgerEntry | None:
        """Adds an entry to the ledger. Returns it if it is authentic and new."""
        entry = self._signer.read(data)
        if entry is None:
            self._messages.labels("foreign").inc()
            return None
        if not self.ledger.add(entry):
            self._messages.labels("repeated").inc()
            return None
        self._messages.labels(origin).inc()
        return entry

"""Publishes the ledger entries of finished turns, and stores them in the ledger's bucket.

The shard that parsed a turn writes its entry. If two shards parsed the same turn, both write the
same entry.
"""

from collections import deque
from typing import Final

import msgspec
from typing_extensions import override

from schemas import subjects
from schemas.errors import TurnwireError
from schemas.ledger import LedgerEntry
from services.ledger.signer import MAX_ENTRY_BYTES, EntrySigner
from services.parser.ledger_entry import entries_of
from services.parser.turn_parse import TurnParse
from services.runtime.observability.metrics import CountCollector, Reading
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket

MAX_UNSENT = 256
"""Entries that wait while the connection is down; the oldest are dropped."""


class LedgerWriter:
    """Writes the entries of one shard. This one writes none; a `BusLedgerWriter` does."""

    def write(self, parse: TurnParse) -> None:
        """Writes the entries of an ended turn.

        To be called before the turn's end is sent: the preprocessors need them for the client's
        next request.
        """


NO_LEDGER_WRITER: Final = LedgerWriter()


class BusLedgerWriter(LedgerWriter):
    """Publishes entries, and stores them in the bucket."""

    def __init__(self, process: Process, signer: EntrySigner, bucket: Bucket | None) -> None:
        """`bucket` None: only the preprocessors' memory keeps the entries."""
        self._process = process
        self._signer = signer
        self._bucket = bucket
        self._unsent: deque[tuple[str, LedgerEntry, bytes]] = deque(maxlen=MAX_UNSENT)
        self.written = 0
        self.too_large = 0
        process.on_reconnect.append(self._send)
        written = Reading("Turns written to the ledger.", self, "written")
        too_large = Reading("Turns too long to be written.", self, "too_large")
        counters = {
            "turnwire_ledger_written_total": written,
            "turnwire_ledger_too_large_total": too_large,
        }
        process.metrics.register(CountCollector(counters))

    @override
    def write(self, parse: TurnParse) -> None:
        for entry in entries_of(parse):
            self._add(self._signer.sign(entry))
        self._send()

    def _add(self, entry: LedgerEntry) -> None:
        data = msgspec.json.encode(entry)
        if len(data) <= MAX_ENTRY_BYTES:
            self._unsent.append((subjects.ledger(entry.model), entry, data))
        elif not entry.beginning:
            self.too_large += 1

    def _send(self) -> None:
        while self._unsent:
            subject, entry, data = self._unsent[0]
            try:
                if not self._process.bus.publish(subject, data):
                    return
                if self._bucket is not None:
                    self._bucket.offer(entry.key.hex(), data, entry.mac.hex())
                self.written += not entry.beginning
            except TurnwireError as error:
                self._process.log.warning("ledger.not_written", error=error.info.message)
            self._unsent.popleft()

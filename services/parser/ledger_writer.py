"""Tells the preprocessors of turns that have ended, and keeps them in the ledger's bucket.

The shard that parsed a turn is the one that writes it. Where two have parsed the same turn, because one was taken for
dead, both write the same.
"""

from collections import deque

import msgspec

from schemas import subjects
from schemas.errors import TurnwireError
from services.parser import family
from services.parser.commit import MAX_ENTRY_BYTES, Notary, entry_of
from services.parser.detokenizer import Vocabulary
from services.parser.turn_parse import TurnParse
from services.runtime.kv import Bucket
from services.runtime.metrics import CountCollector, register
from services.runtime.process import Process

MAX_UNSENT = 256
"""Entries that wait while the connection is down; the oldest are given up."""

_encode = msgspec.json.Encoder().encode


class LedgerWriter:
    """One shard's word to the ledger."""

    def __init__(self, process: Process, notary: Notary, vocabulary: Vocabulary, bucket: Bucket | None) -> None:
        """`bucket` None: turns live in the memory of the preprocessors only."""
        self._process = process
        self._notary = notary
        self._vocabulary = vocabulary
        self._bucket = bucket
        self._unsent: deque[tuple[str, str, bytes]] = deque(maxlen=MAX_UNSENT)
        self.written = 0
        self.too_large = 0
        process.on_reconnect.append(self._send)
        counters = {
            "turnwire_ledger_written_total": ("Turns written to the ledger.", lambda: self.written),
            "turnwire_ledger_too_large_total": ("Turns too long to be written.", lambda: self.too_large),
        }
        register(process.metrics, CountCollector(counters))

    def ended(self, parse: TurnParse) -> None:
        """Writes a turn that has ended, if there is something to write. Before its end is told to anyone, so that the
        preprocessors know of it when the client's next request comes."""
        hidden = self._vocabulary.hidden(family(parse.context.family).markers)
        entry = entry_of(parse, self._vocabulary.open(hidden))
        if entry is None:
            return
        data = _encode(self._notary.sign(entry))
        if len(data) > MAX_ENTRY_BYTES:
            self.too_large += 1
            return
        self._unsent.append((subjects.ledger(entry.model), entry.key.hex(), data))
        self._send()

    def _send(self) -> None:
        while self._unsent:
            subject, key, data = self._unsent[0]
            try:
                if not self._process.bus.publish(subject, data):
                    return
                if self._bucket is not None:
                    self._bucket.offer(key, data)
                self.written += 1
            except TurnwireError as error:
                self._process.log.warning("ledger.not_written", error=error.info.message)
            self._unsent.popleft()

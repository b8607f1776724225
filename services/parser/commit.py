"""What a turn that has ended leaves in the ledger. Pure.

An entry is a prompt's raw material, so it is authenticated with the deployment's seal key: nobody else on the bus can
put words into a model's mouth.
"""

import hashlib
import hmac

import msgspec
from msgspec.structs import replace

from schemas.events import Finish, FinishReason
from schemas.frames import pack_ids
from schemas.ledger import LedgerEntry
from services.parser.detokenizer import Detokenizer
from services.parser.turn_keys import key_arguments, turn_key
from services.parser.turn_parse import TurnParse
from services.runtime.seal import secret

MAX_ENTRY_BYTES = 768 * 1024
"""Of an encoded entry: some 140,000 tokens. It must fit the bus of a NATS server with default limits (1 MB)."""
MAC_BYTES = 16

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LedgerEntry).decode


class Notary:
    """Signs entries and tells signed ones. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        """`key`: the deployment's secret; what is used is derived from it."""
        self._key = hashlib.blake2b(key, digest_size=32, person=b"turnwire-ledger").digest()

    @classmethod
    def load(cls, key_file: str | None, model: str) -> "Notary":
        """With the key that also seals reasoning; see `Sealer.load`. Raises OSError where the file cannot be read."""
        return cls(secret(key_file, model))

    def sign(self, entry: LedgerEntry) -> LedgerEntry:
        """The entry with its `mac`."""
        return replace(entry, mac=self._mac(entry))

    def read(self, data: bytes) -> LedgerEntry | None:
        """The entry in a message; None for anything that was not signed with this key."""
        try:
            entry = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            return None
        return entry if hmac.compare_digest(entry.mac, self._mac(entry)) else None

    def _mac(self, entry: LedgerEntry) -> bytes:
        bare = _encode(replace(entry, mac=b""))
        return hashlib.blake2b(bare, digest_size=MAC_BYTES, key=self._key).digest()


def entry_of(parse: TurnParse, retold: Detokenizer) -> LedgerEntry | None:
    """The unsigned entry of a turn that has ended; None where there is nothing to find it by: it has no seat, it did
    not end well, said nothing, or its last call was cut off and will not come back. `retold`: a fresh decoder of the
    turn's tokens, for turns that a stop string has cut.
    """
    seat, finish = parse.context.ledger, parse.log.terminal
    if seat is None or not isinstance(finish, Finish):
        return None
    read = _blocks(parse)
    if read is None:
        return None
    text, calls = read
    if not (text or calls or seat.said):
        return None
    kept, tail = len(parse.ids), ""
    if finish.reason is FinishReason.STOP_STRING:
        kept, tail = _before_stop(parse, finish.stop_string or "", retold)
    return LedgerEntry(
        model=parse.context.model,
        key=turn_key(seat.state, seat.said + text, calls),
        seat=seat,
        ids=pack_ids(parse.ids[:kept]),
        closed=finish.reason is FinishReason.STOP and parse.cut is None,
        tail=tail,
        in_reasoning=parse.context.in_reasoning,
        prefix=parse.context.prefix,
        calls_as_text=parse.context.calls == "none",
    )


def _blocks(parse: TurnParse) -> tuple[str, list[tuple[str, str]]] | None:
    """All text, and the calls; None where a call is incomplete."""
    log = parse.log
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    for block in range(log.blocks):
        start, stop = log.ends(block)
        if start.kind == "text":
            texts.append(log.text(block))
        elif start.kind == "tool_use":
            if stop is None or not stop.complete:
                return None
            calls.append((start.name or "", key_arguments(log.text(block))))
    return "".join(texts), calls


def _before_stop(parse: TurnParse, stop: str, retold: Detokenizer) -> tuple[int, str]:
    """How many tokens lie wholly before the stop string (behind it, if it is shown), and the characters between."""
    text, lengths = "", [0]
    for token in parse.ids:
        text += retold.step(token)
        lengths.append(len(text))
    # It ended with the last token: that is where it was found, however often it stands before, in reasoning say.
    found = text.find(stop, max(lengths[-2] - len(stop) + 1, 0))
    shown = max(found, 0) + (len(stop) if parse.context.include_stop else 0)
    kept = max(index for index, length in enumerate(lengths) if length <= shown)
    while kept and lengths[kept] == lengths[kept - 1]:  # no token that holds the first bytes of a character
        kept -= 1
    return kept, text[lengths[kept] : shown]

"""Authenticates heartbeats, so that a client of the bus cannot make processes look dead, busy or
alive.

A heartbeat counts only if it has the stage and the id of its subject: the permissions of the bus
let a service publish only on the subjects of its stage. It must be newer than the last one of the
same process: a server of a cluster that hung delivers old ones, after the process has reconnected
to another server. With a key, which all processes share, it must also be signed (HMAC), so that a
recorded one has no effect. The first heartbeat of a process must then have been sent within
`FRESH_S`; only this check depends on clocks.
"""

import hashlib
import hmac
import time
from collections.abc import Callable

import msgspec
from cachetools import LRUCache
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat
from schemas.errors import Invalid
from services.runtime.config.base import read_secret
from services.runtime.observability.log_lines import RateLimit
from services.runtime.observability.metrics import CountCollector, Reading
from services.runtime.observability.telemetry import FilteringBoundLogger

FRESH_S = 300.0
"""Allowed difference of the sender's time and the receiver's, for the first heartbeat of a
process."""
MAX_PROCESSES = 65_536
"""Processes with a remembered number, those that have left included. With a key, a forger cannot
add any."""
LOG_EVERY_S = 10.0
"""Time between two lines about refused heartbeats."""
_MAC = b',"mac":"'
_END = b'"}'
_MAC_DIGITS = 64
_TAIL = len(_MAC) + _MAC_DIGITS + len(_END)

_decode = msgspec.json.Decoder(Heartbeat).decode


class HeartbeatAuth:
    """Encodes a process's own heartbeats, and decodes those of others."""

    def __init__(
        self,
        key_file: str | None,
        metrics: CollectorRegistry,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`key_file` None: heartbeats are not signed. `clock`: Unix time in seconds.

        Raises:
            Invalid: the key cannot be read.
        """
        try:
            secret = read_secret(key_file).encode() if key_file else b""
        except ValueError as error:
            raise Invalid(str(error)) from error
        self._key = _signing_key(secret) if secret else b""
        self._log = log
        self._clock = clock
        self._numbers: LRUCache[str, int] = LRUCache(MAX_PROCESSES)
        """Subject, which names the process → number of the last heartbeat."""
        self.refused = 0
        self._limit = RateLimit(LOG_EVERY_S)
        help_text = "Heartbeats that were forged, recorded or malformed."
        reading = Reading(help_text, self, "refused")
        metrics.register(CountCollector({"turnwire_heartbeats_refused_total": reading}))

    def encode(self, heartbeat: Heartbeat) -> bytes:
        """Encodes a heartbeat of this process."""
        body = msgspec.json.encode(msgspec.structs.replace(heartbeat, time=self._clock()))
        if not self._key:
            return body
        return body[:-1] + _MAC + self._sign(body) + _END

    def decode(self, subject: str, data: bytes) -> Heartbeat | None:
        """Decodes a heartbeat; returns None if it must have no effect."""
        try:
            return self._check(subject, data)
        except msgspec.MsgspecError as error:
            self._refuse(subject, f"it cannot be read: {error}")
        except Invalid as refusal:
            self._refuse(subject, str(refusal))
        return None

    def _check(self, subject: str, data: bytes) -> Heartbeat | None:
        heartbeat = _decode(self._signed(data) if self._key else data)
        if subjects.heartbeat(heartbeat.stage, heartbeat.id) != subject:
            raise Invalid("the process in it is not the one of its subject")
        last = self._numbers.get(subject)
        if last is not None and heartbeat.number <= last:
            if self._key:
                raise Invalid("it is not newer than the last one")
            return None
        if self._key and last is None:
            age_s = self._clock() - heartbeat.time
            if abs(age_s) > FRESH_S:
                raise Invalid(f"it was sent {age_s:.0f} s ago by this machine's clock")
        self._numbers[subject] = heartbeat.number
        return heartbeat

    def is_signed(self, data: bytes) -> bool:
        """Whether a heartbeat was signed with the key."""
        try:
            self._signed(data)
        except Invalid:
            return False
        return True

    def _signed(self, data: bytes) -> bytes:
        """The part that was signed, without the message's last member. Raises Invalid."""
        body = data[:-_TAIL] + b"}"
        tail = data[-_TAIL:]
        if not hmac.compare_digest(tail, _MAC + self._sign(body) + _END):
            raise Invalid("it is not signed with this process's key")
        return body

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256").hex().encode()

    def _refuse(self, subject: str, reason: str) -> None:
        self.refused += 1
        left_out = self._limit.admit()
        if left_out is not None:
            self._log.warning(
                "process.heartbeat_refused", subject=subject, reason=reason, refused=left_out + 1
            )


def _signing_key(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=32, person=b"turnwire-beat").digest()

"""Notices that a bucket is missing, and that it is there again."""

import asyncio

from services.runtime.nats.bus import Bus
from services.runtime.observability.telemetry import FilteringBoundLogger

RETRY_S = 5.0
"""The least time between two searches for a bucket that was not found."""
LOST_S = 30.0
"""Time after which a bucket that was found, and is not there any more, counts as missing.
`turnwire up` and `turnwire buckets --every-s` have made it again by then."""


class BucketPresence:
    """Whether one bucket is there, from the answers to its process."""

    def __init__(self, bus: Bus, bucket: str, log: FilteringBoundLogger) -> None:
        self._bus = bus
        self._bucket = bucket
        self._log = log
        self.found = False
        """The bucket was found, and does not count as missing."""
        self.lost_at: float | None = None
        """The time of the first answer that a bucket which was found is not there."""
        self._ask_again_at = 0.0
        self._reported = False

    def may_ask(self) -> bool:
        """Whether the server is asked for a value: of a missing bucket only at times."""
        return self.found or asyncio.get_running_loop().time() >= self._ask_again_at

    def note_found(self) -> None:
        """Notes an answer that the bucket gave."""
        if self._reported and not self.found:
            # rare: a bucket that was missing is found
            self._log.info("kv.found", bucket=self._bucket)
        self._bus.missing_buckets.discard(self._bucket)
        self.found = True
        self.lost_at = None

    def note_missing(self) -> bool:
        """Notes an answer that the bucket is not there. Returns whether it counts as missing."""
        now = asyncio.get_running_loop().time()
        if self.found:
            if self.lost_at is None:
                self.lost_at = now
            if now < self.lost_at + LOST_S:
                return False
            self.found = self._reported = False
        self._ask_again_at = now + RETRY_S
        self._report()
        return True

    def _report(self) -> None:
        self._bus.missing_buckets.add(self._bucket)
        if not self._reported:
            hint = (
                "`turnwire buckets` creates it on a server with JetStream; a server whose disk was "
                "full has none until it is restarted; until then nothing is stored"
            )
            self._log.warning("kv.missing", bucket=self._bucket, hint=hint)
        self._reported = True

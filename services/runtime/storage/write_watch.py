"""Notices that a bucket takes no writes, and that it does again.

A nats-server with a full disk does not answer writes, and goes on so until it is restarted, also
when there is room again (2.15). So an unanswered write is repeated with a small value, while the
server answers pings: a server that hangs, or has no leader for a moment, is another matter.
"""

import asyncio

from schemas import subjects
from schemas.errors import EngineFailed, TimedOut, TurnwireError, Unavailable
from services.runtime.nats.bus import Bus
from services.runtime.observability.telemetry import FilteringBoundLogger

PROBE_S = 5.0
"""Time between two attempts."""
ATTEMPTS = 2
"""Attempts without success after which the bucket counts as one that takes no writes."""
TIMEOUT_S = 2.0
_KEY = "probe"


def probe_subject(bucket: str, *, has_members: bool) -> str:
    """The subject of a value that nothing reads. `has_members`: keys have several."""
    if has_members:
        return subjects.bucket_member(bucket, _KEY, _KEY)
    return subjects.bucket_key(bucket, _KEY)


async def write_problem_at(bus: Bus, subject: str) -> str | None:
    """Writes a small value. Returns why it was not taken; None if it was. Raises Unavailable if
    there is no bucket or no connection."""
    try:
        return write_problem(await bus.request(subject, b"probe", TIMEOUT_S))
    except Unavailable:
        raise
    except TurnwireError as error:
        return write_problem(error)


def write_problem(answer: bytes | TurnwireError) -> str | None:
    """Why a write was not taken, from its answer; None if it was."""
    if isinstance(answer, bytes):
        return answer.decode() if b'"error"' in answer else None
    if isinstance(answer, TimedOut):
        return "no answer"
    return str(answer)


class WriteWatch:
    """The writes of one process to one bucket."""

    def __init__(self, bus: Bus, bucket: str, log: FilteringBoundLogger) -> None:
        self._bus = bus
        self._bucket = bucket
        self._log = log
        self.has_members = False
        """Whether its keys have several values."""
        self._probing: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        """Whether the bucket takes no writes."""
        return self._bucket in self._bus.unwritable_buckets

    def record(self, answer: bytes | TurnwireError) -> None:
        """Notes the answer to a write. An answer that the bucket is missing is ignored."""
        if not isinstance(answer, bytes | TimedOut | EngineFailed):
            return
        if write_problem(answer) is None:
            self._end()
        elif self._probing is None:
            subject = probe_subject(self._bucket, has_members=self.has_members)
            self._probing = asyncio.get_running_loop().create_task(self._probe(subject))

    async def _probe(self, subject: str) -> None:
        failures = 0
        while True:
            await asyncio.sleep(PROBE_S)
            if not await self._bus.flush(TIMEOUT_S):
                continue
            try:
                problem = await write_problem_at(self._bus, subject)
            except Unavailable:  # it may come back, and not take writes then either
                continue
            if problem is None:
                break
            failures += 1
            if failures == ATTEMPTS:
                self._report(problem)
        self._end()

    def _report(self, problem: str) -> None:
        self._bus.unwritable_buckets.add(self._bucket)
        hint = (
            "the disk of nats-server is full, or was: make room, then restart nats-server, which "
            "`turnwire up` does itself; until then nothing is stored"
        )
        self._log.error("kv.unwritable", bucket=self._bucket, reason=problem, hint=hint)

    def _end(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None
        if self.failed:
            # rare: a bucket takes writes again
            self._bus.unwritable_buckets.discard(self._bucket)
            self._log.info("kv.writable", bucket=self._bucket)

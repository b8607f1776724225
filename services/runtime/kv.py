"""Buckets of values that outlive a process and are shared by all: JetStream's key-value form (NATS ADR-8), over the
requests that the bus has anyway.

A bucket is a cache: values expire, and where it is full the oldest go first. What is gone costs its user speed or a
"not found", never correctness. It is a stream like `nats kv` makes one, with two differences that a cache needs: full
means that old entries go (`discard: old`), not that new ones are refused, and a watcher listens to the writes
themselves, on the bucket's subjects, instead of having a consumer kept for it on the server.
"""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.errors import EngineFailed, TooLarge, TurnwireError, Unavailable
from services.runtime.bus import Bus, Message, Subscription

TIMEOUT_S = 2.0
OFFER_DELAY_S = 0.1
"""Values that are offered go out together: one that comes alone costs the server 50 us more than a plain message,
five or more together less than a plain message each."""
_DUPLICATE_WINDOW_S = 120.0
_PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
_NAME_IN_USE = 10058
_NOT_ENABLED = frozenset({10039, 10076})
"""JetStream's error codes: not enabled for this account, not enabled on this server."""

Watcher = Callable[[str, bytes | None], None]
"""Called with a key and its new value; None: the key was deleted."""


class BucketConfig(Struct, frozen=True, kw_only=True):
    """What a bucket may hold, and for how long."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+$")]
    description: str
    ttl_s: float
    """An entry goes after so long without a write."""
    max_bytes: int
    """All entries together, keys and overhead included; over it, the oldest go."""
    max_value_bytes: int
    """One value; a larger one is refused."""
    storage: Literal["file", "memory"] = "file"
    """`memory`: the entries go when the server does."""
    replicas: int = 1
    """Servers of a cluster that hold a copy."""


class Bucket:
    """An open bucket. Every operation raises Unavailable or TimedOut where the server does not answer."""

    def __init__(self, bus: Bus, config: BucketConfig, log: FilteringBoundLogger) -> None:
        self._bus = bus
        self._config = config
        self._log = log
        self._offered: list[tuple[str, bytes]] = []
        self._timer: asyncio.TimerHandle | None = None
        bus.before_close.append(self._send_offered)

    @property
    def name(self) -> str:
        """As `BucketConfig.name`."""
        return self._config.name

    async def get(self, key: str) -> bytes | None:
        """The value; None where there is none (any more)."""
        subject = subjects.bucket_get(self.name, key)
        try:
            found = await self._bus.request(subject, b"", TIMEOUT_S)
        except Unavailable:
            # Nobody answers for a stream that is gone: a server with memory storage was started anew.
            if not self._bus.connected or not await self._created():
                raise
            found = await self._bus.request(subject, b"", TIMEOUT_S)
        return found or None

    async def put(self, key: str, value: bytes) -> None:
        """Keeps a value; when this returns, every process can read it.

        Raises:
            ValueError: the value is empty, which means "deleted".
            TooLarge: the value is over `max_value_bytes`, or over what the bus takes.
        """
        self._check(value)
        await self._write(subjects.bucket_key(self.name, key), value, None)

    def offer(self, key: str, value: bytes) -> bool:
        """Sends a value to keep, within `OFFER_DELAY_S` and before any other write, and does not wait to hear whether
        it was kept. False: the connection is down. If it breaks within that time the value is lost.

        Raises as `put`.
        """
        self._check(value)
        if not self._bus.connected:
            return False
        self._offered.append((subjects.bucket_key(self.name, key), value))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(OFFER_DELAY_S, self._send_offered)
        return True

    def _send_offered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        offered, self._offered = self._offered, []
        for subject, value in offered:
            with suppress(TooLarge):  # of a server that came back with another limit
                self._bus.publish(subject, value)

    async def delete(self, key: str) -> None:
        """The key has no value any more. Deleting what is not there is fine."""
        await self._write(subjects.bucket_key(self.name, key), b"", _PURGE)

    async def watch(self, handler: Watcher) -> Subscription:
        """Calls `handler` for every write of any process, this one included, from now on.

        A write that happens while the connection is down is not heard of: `get` is what counts. The handler is called
        on the loop and must not block.
        """

        def heard(message: Message) -> None:
            handler(subjects.bucket_key_of(message.subject), message.data or None)

        return await self._bus.subscribe(subjects.bucket_keys(self.name), heard)

    def _check(self, value: bytes) -> None:
        if not value:
            raise ValueError("an empty value means that the key is deleted")
        limit = min(self._config.max_value_bytes, self._bus.max_payload)
        if len(value) > limit:
            raise TooLarge(f"a value of {len(value)} bytes is over the limit of {limit} bytes of bucket {self.name}")

    async def _write(self, subject: str, value: bytes, headers: dict[str, str] | None) -> None:
        self._send_offered()
        try:
            answer = await self._bus.request(subject, value, TIMEOUT_S, headers=headers)
        except Unavailable:
            if not self._bus.connected or not await self._created():
                raise
            answer = await self._bus.request(subject, value, TIMEOUT_S, headers=headers)
        if (error := _error(answer)) is not None:
            raise EngineFailed(f"bucket {self.name}: {error.get('description', 'the write was refused')}")

    async def _created(self) -> bool:
        """Makes sure that the stream is there. False: the server has no JetStream. Raises EngineFailed."""
        config, problem = _stream(self._config), ""
        for subject in (subjects.stream_create(self.name), subjects.stream_update(self.name)):
            try:
                answer = await self._bus.request(subject, msgspec.json.encode(config), TIMEOUT_S)
            except Unavailable:
                return False
            error = _error(answer)
            if error is None:
                return True
            if error.get("err_code") in _NOT_ENABLED:
                return False
            problem = error.get("description", "JetStream refused it")
            if error.get("err_code") != _NAME_IN_USE:
                break
            # Made with other limits, by an older release or another setting: ours hold from now on.
        raise EngineFailed(f"bucket {self.name}: {problem}")


async def open_bucket(bus: Bus, config: BucketConfig, log: FilteringBoundLogger) -> Bucket | None:
    """The bucket, made if it is not there. None, after one line in the log that says why, where it cannot be had: the
    server has no JetStream, this user may not use it, or it has no room."""
    bucket = Bucket(bus, config, log)
    try:
        if await bucket._created():
            return bucket
        reason = "the server has no JetStream"
    except TurnwireError as error:
        reason = error.info.message
    log.warning("kv.disabled", bucket=config.name, reason=reason)
    return None


def digest_key(*parts: str | None) -> str:
    """A short key of [0-9a-f] that no two different lists of parts share; None differs from ""."""
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=20).hexdigest()


def _stream(config: BucketConfig) -> dict[str, Any]:
    return {
        "name": subjects.stream_of(config.name),
        "description": config.description,
        "subjects": [subjects.bucket_keys(config.name)],
        "retention": "limits",
        "storage": config.storage,
        "num_replicas": config.replicas,
        "discard": "old",
        "max_bytes": config.max_bytes,
        "max_age": int(config.ttl_s * 1e9),
        "max_msgs": -1,
        "max_msgs_per_subject": 1,
        "max_msg_size": config.max_value_bytes + 1024,  # the headers of a delete count, too
        "max_consumers": -1,
        "duplicate_window": int(min(config.ttl_s, _DUPLICATE_WINDOW_S) * 1e9),
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }


def _error(answer: bytes) -> dict[str, Any] | None:
    """What JetStream says against a request; None where it was done."""
    try:
        document = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return {"description": "the answer is no JSON"}
    error = document.get("error") if isinstance(document, dict) else {"description": "the answer is no object"}
    return error if isinstance(error, dict) else None

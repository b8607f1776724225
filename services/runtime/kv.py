"""Buckets of values that outlive a process and are shared by all: JetStream's key-value form (NATS ADR-8).

A bucket is a cache: values expire, and where it is full the oldest go first. What is gone costs its user speed or a
"not found", never correctness. Its stream differs in that from the one of nats-py's `create_key_value`, which refuses
new values when it is full. A watcher subscribes to the writes themselves instead of a consumer on the server.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.errors import EngineFailed, NotFound, TooLarge, TurnwireError, Unavailable
from services.runtime.bus import Bus, Message, Subscription

TIMEOUT_S = 2.0
_DUPLICATE_WINDOW_S = 120.0
_PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}

T = TypeVar("T")
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
    """An open bucket. Every operation raises Unavailable or TimedOut where the server does not answer, EngineFailed
    where it refuses."""

    def __init__(self, bus: Bus, config: BucketConfig) -> None:
        self._bus = bus
        self._config = config
        self._stream = subjects.stream_of(config.name)

    async def get(self, key: str) -> bytes | None:
        """The value; None where there is none (any more)."""
        subject = subjects.bucket_key(self._config.name, key)
        try:
            found = await self._call(lambda js: js.get_last_msg(self._stream, subject, direct=True))
        except NotFound:
            return None
        return found.data or None

    async def members(self, key: str) -> list[bytes]:
        """The values of a key that has several, oldest first."""
        subject, values, seq = subjects.bucket_members(self._config.name, key), list[bytes](), 0

        def next_one(js: Any) -> Awaitable[Any]:
            return cast(Awaitable[Any], js.get_msg(self._stream, seq + 1, subject, direct=True, next=True))

        while True:
            try:
                found = await self._call(next_one)
            except NotFound:
                return values
            seq = found.seq
            if found.data:
                values.append(found.data)

    async def put(self, key: str, value: bytes) -> None:
        """Keeps a value; when this returns, every process can read it.

        Raises:
            ValueError: the value is empty, which means "deleted".
            TooLarge: the value is over `max_value_bytes`, or over what the bus takes.
        """
        self._check(value)
        await self._write(key, value, None)

    def offer(self, key: str, value: bytes, member: str | None = None) -> bool:
        """Sends a value to keep in this tick, without an acknowledgement. False: the connection is down. `member`: see
        `members`.

        Raises as `put`.
        """
        self._check(value)
        bucket = self._config.name
        subject = subjects.bucket_key(bucket, key) if member is None else subjects.bucket_member(bucket, key, member)
        return self._bus.publish(subject, value)

    async def delete(self, key: str) -> None:
        """The key has no value any more. Deleting what is not there is fine."""
        await self._write(key, b"", _PURGE)

    async def watch(self, handler: Watcher) -> Subscription:
        """Calls `handler` for every write of any process, this one included, from now on.

        A write while the connection is down is missed; `get` is what counts. The handler is called on the loop and
        must not block.
        """

        def take(message: Message) -> None:
            handler(subjects.bucket_key_of(message.subject), message.data or None)

        return await self._bus.subscribe(subjects.bucket_keys(self._config.name), take)

    def _check(self, value: bytes) -> None:
        if not value:
            raise ValueError("an empty value means that the key is deleted")
        limit, name = min(self._config.max_value_bytes, self._bus.max_payload), self._config.name
        if len(value) > limit:
            raise TooLarge(f"a value of {len(value)} bytes is over the limit of {limit} bytes of bucket {name}")

    async def _write(self, key: str, value: bytes, headers: dict[str, str] | None) -> None:
        subject = subjects.bucket_key(self._config.name, key)
        await self._call(lambda js: js.publish(subject, value, headers=headers))

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await self._bus.jetstream(call, TIMEOUT_S)
        except Unavailable:
            if not self._bus.connected:
                raise
        # The stream is gone: a server with memory storage was restarted.
        await self.create()
        return await self._bus.jetstream(call, TIMEOUT_S)

    async def create(self) -> None:
        """Creates the stream, or updates it to the limits of this configuration."""
        config = self._config
        stream: dict[str, Any] = {
            "name": self._stream,
            "description": config.description,
            "subjects": [subjects.bucket_keys(config.name)],
            "retention": "limits",
            "storage": config.storage,
            "num_replicas": config.replicas,
            "discard": "old",
            "max_bytes": config.max_bytes,
            "max_age": config.ttl_s,
            "max_msgs": -1,
            "max_msgs_per_subject": 1,
            "max_msg_size": config.max_value_bytes + 1024,  # the headers of a delete count, too
            "max_consumers": -1,
            "duplicate_window": min(config.ttl_s, _DUPLICATE_WINDOW_S),
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        }
        try:
            await self._bus.jetstream(lambda js: js.add_stream(**stream), TIMEOUT_S)
        except EngineFailed as refused:
            # A bucket of an older release or of another setting has other limits. Anything else fails again.
            try:
                await self._bus.jetstream(lambda js: js.update_stream(**stream), TIMEOUT_S)
            except (NotFound, EngineFailed):
                raise EngineFailed(f"bucket {config.name}: {refused}") from None


async def open_bucket(bus: Bus, config: BucketConfig, log: FilteringBoundLogger) -> Bucket | None:
    """The bucket, created if it does not exist. None, after one line in the log with the reason, where there can be
    none: the server has no JetStream, this user may not use it, or it has no room."""
    bucket = Bucket(bus, config)
    try:
        await bucket.create()
    except TurnwireError as error:
        log.warning("kv.disabled", bucket=config.name, reason=error.info.message)
        return None
    return bucket


def digest_key(*parts: str | None) -> str:
    """A short key of [0-9a-f] that no two different lists of parts share; None differs from ""."""
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=20).hexdigest()

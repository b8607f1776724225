"""Buckets of values that outlive a process and are shared by all: JetStream's key-value form (NATS ADR-8).

A bucket is a cache: values expire, and where it is full the oldest go first. What is gone costs its user speed or a
"not found", never correctness. Its stream differs in that from the one of nats-py's `create_key_value`, which refuses
new values when it is full. `create_bucket` is for the set-up step (`turnwire buckets`): services may not create
streams, and only use those that exist.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from schemas import subjects
from schemas.errors import EngineFailed, NotFound, TooLarge, TurnwireError, Unavailable
from services.runtime.bus import Bus
from services.runtime.config import MIB, LedgerStoreConfig
from services.runtime.observability.telemetry import FilteringBoundLogger

TIMEOUT_S = 2.0
RETRY_S = 5.0
"""A bucket that was never found is looked for at most this often."""
_DUPLICATE_WINDOW_S = 120.0
_DELETE = {"KV-Operation": "DEL"}

T = TypeVar("T")


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


LEDGER_BUCKET = "tw_ledger"


def ledger_bucket(config: LedgerStoreConfig) -> BucketConfig:
    """Returns the bucket in which ledger entries of all models outlive processes: parsers write, preprocessors read."""
    return BucketConfig(
        name=LEDGER_BUCKET,
        description="Turnwire: the tokens of turns",
        ttl_s=config.ledger_ttl_s,
        max_bytes=config.ledger_store_mb * MIB,
        max_value_bytes=MIB,
    )


class Bucket:
    """A bucket as a service uses it. Its operations raise Unavailable or TimedOut where the server does not answer,
    EngineFailed where it refuses.

    A bucket that this process never found acts as an empty one that keeps nothing. It is logged once, and the
    bucket is used as soon as it exists.
    """

    def __init__(self, bus: Bus, config: BucketConfig, log: FilteringBoundLogger) -> None:
        self._bus = bus
        self._config = config
        self._log = log
        self._stream = subjects.stream_of(config.name)
        self._found = False
        self._reported = False
        self._look_again = 0.0

    async def get(self, key: str) -> bytes | None:
        """The value; None where there is none (any more)."""
        subject = subjects.bucket_key(self._config.name, key)
        found = await self._call(lambda js: js.get_last_msg(self._stream, subject, direct=True))
        return None if found is None else found.data or None

    async def members(self, key: str) -> list[bytes]:
        """The values of a key that has several, oldest first."""
        subject, values, seq = subjects.bucket_members(self._config.name, key), list[bytes](), 0

        def next_one(js: Any) -> Awaitable[Any]:
            return cast(Awaitable[Any], js.get_msg(self._stream, seq + 1, subject, direct=True, next=True))

        while (found := await self._call(next_one)) is not None:
            seq = found.seq
            if found.data:
                values.append(found.data)
        return values

    async def any_members(self, keys: Sequence[str]) -> bool:
        """Whether any of these keys has values of `members`: one request for all of them. True where the server does
        not answer the question."""
        wanted = [subjects.bucket_members(self._config.name, key) for key in keys]
        request = msgspec.json.encode({"multi_last": wanted, "batch": 1})  # the first answer decides
        try:
            await self._bus.request(subjects.stored_messages(self._stream), request, TIMEOUT_S)
        except NotFound:
            self._exists()
            return False
        except (EngineFailed, Unavailable):
            pass
        return True

    async def put(self, key: str, value: bytes) -> None:
        """Keeps a value; when this returns, every process can read it.

        Raises:
            ValueError: the value is empty, which means "deleted".
            TooLarge: the value is over `max_value_bytes`, or over what the bus takes.
        """
        self._check(value)
        await self._write(key, value, None)

    def offer(self, key: str, value: bytes, member: str | None = None) -> None:
        """Sends a value to keep in this tick, and does not wait for the acknowledgement. `member`: see `members`.

        Raises as `put`; Unavailable: the connection is down.
        """
        self._check(value)
        bucket = self._config.name
        subject = subjects.bucket_key(bucket, key) if member is None else subjects.bucket_member(bucket, key, member)
        self._bus.ask(subject, value, TIMEOUT_S, self._acknowledged)

    async def delete(self, key: str) -> None:
        """The key has no value any more. Deleting what is not there is fine."""
        await self._write(key, b"", _DELETE)

    def _check(self, value: bytes) -> None:
        if not value:
            raise ValueError("an empty value means that the key is deleted")
        limit, name = min(self._config.max_value_bytes, self._bus.max_payload), self._config.name
        if len(value) > limit:
            raise TooLarge(f"a value of {len(value)} bytes is over the limit of {limit} bytes of bucket {name}")

    async def _write(self, key: str, value: bytes, headers: dict[str, str] | None) -> None:
        subject = subjects.bucket_key(self._config.name, key)
        await self._call(lambda js: js.publish(subject, value, headers=headers))

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T | None:
        """One call of JetStream; None where nothing is found, or the bucket never was."""
        now = asyncio.get_running_loop().time()
        if not self._found and now < self._look_again:
            return None
        try:
            result: T | None = await self._bus.jetstream(call, TIMEOUT_S)
        except NotFound:
            result = None
        except Unavailable:
            if self._found or not self._bus.connected:
                raise
            self._look_again = now + RETRY_S
            self._missing()
            return None
        self._exists()
        return result

    def _acknowledged(self, answer: bytes | TurnwireError) -> None:
        if isinstance(answer, bytes):
            self._exists()
        elif isinstance(answer, Unavailable) and self._bus.connected and not self._found:
            self._missing()

    def _exists(self) -> None:
        if self._reported and not self._found:
            self._log.info("kv.found", bucket=self._config.name)
        self._found = True

    def _missing(self) -> None:
        if not self._reported:
            hint = "`turnwire buckets` creates it on a server with JetStream; until then nothing is stored"
            self._log.warning("kv.missing", bucket=self._config.name, hint=hint)
        self._reported = True


async def create_bucket(bus: Bus, config: BucketConfig) -> None:
    """Creates a bucket, or updates it to this configuration.

    Raises:
        Unavailable, TimedOut: the server does not answer, or has no JetStream.
        EngineFailed: the server refuses the bucket.
    """
    stream: dict[str, Any] = {
        "name": subjects.stream_of(config.name),
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
        "allow_rollup_hdrs": False,  # with one of them, any writer could empty the bucket
        "deny_delete": True,
    }
    try:
        await bus.jetstream(lambda js: js.add_stream(**stream), TIMEOUT_S)
    except EngineFailed as refused:
        # A bucket of an older release or of another setting has other limits. Anything else fails again.
        try:
            await bus.jetstream(lambda js: js.update_stream(**stream), TIMEOUT_S)
        except (NotFound, EngineFailed):
            raise EngineFailed(f"bucket {config.name}: {refused}") from None


def digest_key(*parts: str | None) -> str:
    """A short key of [0-9a-f] that no two different lists of parts share; None differs from ""."""
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=20).hexdigest()

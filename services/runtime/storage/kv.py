"""Stores values that all processes share in buckets of JetStream, in its key-value form (NATS
ADR-8).

Each value is encrypted with a key derived from its own name, and stored under a hash of that name:
NATS lets a user that may read one key read them all by wildcard or by number, but it cannot decrypt
the values of keys that it lacks.

A bucket is a cache: values expire, and a full bucket drops the oldest. A missing value costs speed
or a "not found", never correctness. The stream of nats-py's `create_key_value` would refuse new
values when it is full. `create_bucket` is for the set-up step (`turnwire buckets`): services may
not create streams, and only use existing ones.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Meta, Struct

from schemas import subjects
from schemas.errors import (
    RETRY_AFTER_S,
    EngineFailed,
    NotFound,
    TimedOut,
    TooLarge,
    TurnwireError,
    Unavailable,
)
from services.runtime.config.base import MIB
from services.runtime.config.stores import LedgerStoreConfig
from services.runtime.nats.bus import Bus
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.bucket_presence import BucketPresence
from services.runtime.storage.write_watch import WriteWatch

TIMEOUT_S = 2.0
PAUSE_S = 0.2
"""Pause before a call is repeated."""
_DUPLICATE_WINDOW_S = 120.0
_NONCE_BYTES = 12
_SEAL_BYTES = _NONCE_BYTES + 16
_DELETE = {"KV-Operation": "DEL"}
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_WRONG_NUMBER = "wrong last sequence"
"""The server's error for another number than the expected one."""

T = TypeVar("T")
JetStreamCall: TypeAlias = Callable[[Any], Awaitable[T]]
"""A call of nats-py's JetStream interface."""


class BucketConfig(Struct, frozen=True, kw_only=True):
    """The limits of a bucket."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+$")]
    description: str
    ttl_s: float
    """Time after which an entry without a write is dropped."""
    max_bytes: int
    """Most bytes of all entries, with keys and overhead; beyond it the oldest are dropped."""
    max_value_bytes: int
    """Most bytes of a value; a larger one is refused."""
    storage: Literal["file", "memory"] = "file"
    """`memory`: the entries are lost when the server ends."""
    replicas: int = 1
    """Servers of a cluster that hold a copy."""


LEDGER_BUCKET = "tw_ledger"


def ledger_bucket(config: LedgerStoreConfig) -> BucketConfig:
    """The bucket of the ledger entries of all models, which parsers write and preprocessors
    read."""
    return BucketConfig(
        name=LEDGER_BUCKET,
        description="Turnwire: the tokens of turns",
        ttl_s=config.ledger_ttl_s,
        max_bytes=config.ledger_store_mb * MIB,
        max_value_bytes=MIB,
    )


class Bucket:
    """One bucket. Its operations raise Unavailable or TimedOut if the server does not answer,
    EngineFailed if it refuses.

    Reading a value takes its key, so a key must be as hard to guess as a password. A stored value
    that another key, another release or a forger made counts as missing.

    A bucket that this process never found, or not for some time (`BucketPresence`), acts as an
    empty one: only `put` fails. This is logged once and counted (`Bus.missing_buckets`), and the
    bucket is used as soon as it exists.
    """

    def __init__(
        self, bus: Bus, config: BucketConfig, log: FilteringBoundLogger, *, patience_s: float = 0.0
    ) -> None:
        """`patience_s`: how long a call is repeated while the server does not answer. A cluster
        that loses a server needs some ten seconds for a new leader."""
        self._patience_s = patience_s
        self._bus = bus
        self._config = config
        self._log = log
        self._stream = subjects.stream_of(config.name)
        self._presence = BucketPresence(bus, config.name, log)
        self._writes = WriteWatch(bus, config.name, log)

    async def get(self, key: str) -> bytes | None:
        """The value; None if the key has none."""
        _, value = await self.entry(key)
        return value

    async def entry(self, key: str) -> tuple[int, bytes | None]:
        """The number of a key's last write, for `replace`, and its value; 0 and None where there
        was none."""
        subject = _subject(self._config.name, key)
        message = await self._call(lambda js: js.get_last_msg(self._stream, subject, direct=True))
        return (0, None) if message is None else (message.seq, _open(key, message.data))

    async def members(self, key: str) -> list[bytes]:
        """The values of a key with several, oldest first."""
        return [value async for _, value in self.members_after(key, 0)]

    async def members_after(self, key: str, seq: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yields the values that were written after number `seq` of the bucket, oldest first, each
        with its own number."""
        async for message in self._member_messages(key, seq):
            value = _open(key, message.data)
            if value is not None:
                yield message.seq, value

    async def _member_messages(self, key: str, seq: int) -> AsyncIterator[Any]:
        subject = subjects.bucket_members(self._config.name, place_of(key))

        def get_next(js: Any) -> Awaitable[Any]:
            message = js.get_msg(self._stream, seq + 1, subject, direct=True, next=True)
            return cast(Awaitable[Any], message)

        while True:
            message = await self._call(get_next)
            if message is None:
                return
            seq = message.seq
            yield message

    async def any_members(self, keys: Sequence[str]) -> bool:
        """Whether any of these keys has values (`members`), with one request; also True if the
        server does not answer."""
        filters = [subjects.bucket_members(self._config.name, place_of(key)) for key in keys]
        # The first answer decides.
        request = msgspec.json.encode({"multi_last": filters, "batch": 1})
        try:
            await self._bus.request(subjects.stored_messages(self._stream), request, TIMEOUT_S)
        except NotFound:
            self._presence.note_found()
            return False
        except (EngineFailed, TimedOut, Unavailable):
            pass
        return True

    async def put(self, key: str, value: bytes, member: str | None = None) -> None:
        """Stores a value; when this returns, every process can read it. `member`: as for `offer`.

        Raises:
            ValueError: the value is empty, which means "deleted".
            TooLarge: the value is over `max_value_bytes`, or over the limit of the bus.
            Unavailable: also where the bucket is missing.
        """
        await self._write(_subject(self._config.name, key, member), self._seal(key, value), None)
        if not self._presence.found:
            raise Unavailable(
                f"the bucket {self._config.name} is missing: nothing can be stored in it",
                retry_after_s=RETRY_AFTER_S,
            )

    def offer(self, key: str, value: bytes, member: str | None = None) -> None:
        """Sends a value in this tick, without waiting for the acknowledgement. `member`: its name
        among `members`.

        Raises as `put`; Unavailable: the connection is down.
        """
        subject = _subject(self._config.name, key, member)
        self._bus.ask(subject, self._seal(key, value), TIMEOUT_S, self._acknowledged)

    async def replace(self, key: str, value: bytes, number: int) -> bool:
        """Stores a value if the last write of its key has this number. Returns whether it was
        stored; True also where the bucket is missing. Raises as `put`."""
        headers = {_EXPECTED: str(number)}
        try:
            await self._write(_subject(self._config.name, key), self._seal(key, value), headers)
        except EngineFailed as refused:
            if _WRONG_NUMBER in str(refused):
                return False
            raise
        return True

    async def delete(self, key: str) -> None:
        """Deletes the value of a key, if it has one."""
        await self._write(_subject(self._config.name, key), b"", _DELETE)

    async def delete_members(self, key: str) -> None:
        """Deletes the values of a key that has several, the newest first: where this is cut off,
        the key still has its first value, and can be deleted again."""
        values = [
            message.subject async for message in self._member_messages(key, 0) if message.data
        ]
        for subject in reversed(values):
            await self._write(subject, b"", _DELETE)

    def _seal(self, key: str, value: bytes) -> bytes:
        if not value:
            raise ValueError("an empty value means that the key is deleted")
        limit = min(self._config.max_value_bytes, self._bus.max_payload - _SEAL_BYTES)
        if len(value) > limit:
            raise TooLarge(
                f"a value of {len(value)} bytes is over the limit of {limit} bytes of bucket "
                f"{self._config.name}"
            )
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + _cipher(key).encrypt(nonce, value, None)

    async def _write(self, subject: str, value: bytes, headers: dict[str, str] | None) -> None:
        if self._writes.failed:
            raise Unavailable(
                f"the bucket {self._config.name} takes no writes", retry_after_s=RETRY_AFTER_S
            )
        try:
            await self._call(lambda js: js.publish(subject, value, headers=headers))
        except (TimedOut, EngineFailed) as error:
            if _WRONG_NUMBER not in str(error):  # the bucket takes writes: another one was first
                self._writes.record(error)
            raise

    async def _call(self, call: JetStreamCall[T]) -> T | None:
        """Makes one call of JetStream, again for `patience_s`; None if nothing is found, or the
        bucket was never found."""
        began = asyncio.get_running_loop().time()
        if self._presence.lost_at is not None:  # earlier calls have waited for it
            began = min(began, self._presence.lost_at)
        until = began + self._patience_s
        while True:
            try:
                return await self._try(call)
            except (TimedOut, Unavailable):
                # rare: the store does not answer, and the call may be repeated
                if asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _try(self, call: JetStreamCall[T]) -> T | None:
        if not self._presence.may_ask():
            return None
        try:
            result: T | None = await self._bus.jetstream(call, TIMEOUT_S)
        except NotFound:
            result = None
        except Unavailable:
            if not self._bus.connected or not self._presence.note_missing():
                raise
            return None
        self._presence.note_found()
        return result

    def _acknowledged(self, answer: bytes | TurnwireError) -> None:
        self._writes.record(answer)
        if isinstance(answer, bytes):
            self._presence.note_found()
        elif isinstance(answer, Unavailable) and self._bus.connected:
            self._presence.note_missing()


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
        # A bucket of an older release or another setting has other limits. Another error occurs
        # again.
        try:
            await bus.jetstream(lambda js: js.update_stream(**stream), TIMEOUT_S)
        except (NotFound, EngineFailed):
            raise EngineFailed(f"bucket {config.name}: {refused}") from None


def _subject(bucket: str, key: str, member: str | None = None) -> str:
    if member is None:
        return subjects.bucket_key(bucket, place_of(key))
    return subjects.bucket_member(bucket, place_of(key), member)


def place_of(key: str) -> str:
    """The name under which the values of a key are stored. It does not show the key: others may
    have it."""
    return hashlib.blake2b(key.encode(), digest_size=20, person=b"turnwire-place").hexdigest()


def _cipher(key: str) -> AESGCM:
    return AESGCM(hashlib.blake2b(key.encode(), digest_size=32, person=b"turnwire-value").digest())


def _open(key: str, data: bytes) -> bytes | None:
    """Decrypts a stored value; None if there is none, or if it was not made with this key."""
    if not data:
        return None
    try:
        return _cipher(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        return None


def digest_key(*parts: str | None) -> str:
    """A short key of [0-9a-f] that differs for different lists of parts; None differs from ""."""
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=20).hexdigest()

"""Stores rollouts in a bucket that all frontends share.

A rollout is one key of the bucket with several values: the rollout itself, written first; its
state; its rewards; and a value for each turn. A turn's value says at first that it is open, and
after its end has its tokens. So whatever process dies, a turn is there or is known to be missing.

A full bucket drops its oldest values: where the first value of a rollout is still there, so are all
others.
"""

from collections.abc import AsyncIterator

import msgspec

from services.images.store import ImageStore
from services.rollouts.rollout import Rewards, Rollout, RolloutState
from services.rollouts.stored_turns import BegunTurn, FailedTurn, StoredTurn
from services.runtime.config.base import MIB
from services.runtime.config.stores import RolloutStoreConfig
from services.runtime.storage.kv import Bucket, BucketConfig

ROLLOUT_BUCKET = "tw_rollouts"
MAX_VALUE_BYTES = 7 * MIB
"""The largest value, below the limit of the bus."""

Record = Rollout | RolloutState | Rewards | BegunTurn | StoredTurn | FailedTurn
"""One value of a rollout."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def rollout_bucket(config: RolloutStoreConfig) -> BucketConfig:
    """Returns the bucket of rollouts, which frontends write and read."""
    return BucketConfig(
        name=ROLLOUT_BUCKET,
        description="Turnwire: rollouts",
        ttl_s=config.rollout_ttl_s,
        max_bytes=config.rollout_store_mb * MIB,
        max_value_bytes=MAX_VALUE_BYTES,
    )


class RolloutStore:
    """All rollouts, and the images of their prompts. Reading one takes its id, which is as hard to
    guess as a password."""

    def __init__(self, bucket: Bucket, images: ImageStore) -> None:
        self._bucket = bucket
        self._images = images

    async def put(self, id: str, record: Record) -> None:
        """Stores a record; when this returns, every frontend can read it. Raises as
        `Bucket.put`."""
        await self._bucket.put(id, _encode(record), _member(record))

    async def read(self, id: str, after: int = 0) -> AsyncIterator[tuple[int, Record]]:
        """Yields the records that were written after number `after`, oldest first, each with its
        number. Raises TurnwireError."""
        async for number, value in self._bucket.members_after(id, after):
            yield number, _decode(value)

    async def read_image(self, hash: str) -> bytes:
        """Returns the data of an image in prompts. Raises Unavailable if it is not stored any
        more."""
        return await self._images.get(hash)

    async def has(self, id: str, number: int) -> bool:
        """Returns whether the record with this number is still there. Raises TurnwireError."""
        async for found, _ in self.read(id, number - 1):
            return found == number
        return False

    async def delete(self, id: str) -> None:
        """Deletes a rollout. Raises TurnwireError."""
        await self._bucket.delete_members(id)


def _member(record: Record) -> str:
    """The name of a record among those of its rollout."""
    match record:
        case Rollout():
            return "rollout"
        case RolloutState() | Rewards():  # one for each run: a frontend may miss a restart
            return f"{type(record).__name__} {record.run}"
        case BegunTurn() | StoredTurn() | FailedTurn():
            return f"turn {record.turn}"

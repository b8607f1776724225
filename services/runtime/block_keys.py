"""Keys of KV blocks: the same tokens behind the same tokens have the same key, in every process and after a restart.

Each key is the XXH3 hash of the block's token ids, seeded with the key of the block before: 0.26 ms for 52,000 tokens
in blocks of 32. A collision costs a prefill that was not expected and nothing else: engines match blocks themselves.
"""

import sys
from array import array
from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

_ID_BYTES = 4


def block_keys(
    packed: bytes, block_tokens: int, *, salt: str | None = None, parent: int | None = None
) -> Iterator[int]:
    """The keys of the whole blocks of a prompt, from its start or from behind the block with key `parent`.

    `packed`: token ids (`frames.pack_ids`).
    """
    key = root(salt) if parent is None else parent
    step = block_tokens * _ID_BYTES
    for start in range(0, len(packed) - step + 1, step):
        key = xxh3_64_intdigest(packed[start : start + step], key)
        yield key


def root(salt: str | None) -> int:
    """What stands in for the key before the first block."""
    return xxh3_64_intdigest(salt.encode()) if salt else 0


def pack(keys: Iterator[int] | list[int]) -> bytes:
    """Keys as little-endian u64 bytes."""
    packed = array("Q", keys)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> list[int]:
    """The inverse of `pack`. Raises ValueError where the length is not a multiple of eight."""
    keys = array("Q")
    keys.frombytes(packed)
    if sys.byteorder == "big":
        keys.byteswap()
    return keys.tolist()

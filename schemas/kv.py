"""Messages with which preprocessors track the KV blocks that each worker holds.

A block's key is a hash of all tokens from the prompt's start to the block's end, and of the salt. All processes compute
the same keys (`tokenization.block_keys`); an engine's own hashes stay in its worker.
"""

from msgspec import Struct


class KvUpdate(Struct, frozen=True, omit_defaults=True):
    """worker → preprocessors: what changed. `cleared` applies first, then `removed`, then `stored`."""

    worker: str
    seq: int
    """1, 2, 3 … per worker. A receiver that misses one requests a `KvSnapshot`."""
    stored: bytes = b""
    """Packed keys (`block_keys.pack`)."""
    removed: bytes = b""
    cleared: bool = False


class KvSnapshot(Struct, frozen=True):
    """A worker's reply: every block that it holds, as of `KvUpdate` number `seq`."""

    worker: str
    seq: int
    keys: bytes

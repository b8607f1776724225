"""Who holds which KV blocks: what workers tell, and what preprocessors choose workers by.

A block is named by its key: a hash of all tokens from the prompt's start to the block's end, and of the salt. Keys are
made in `runtime.block_keys`, the same in every process; an engine's own hashes never leave its worker.
"""

from msgspec import Struct


class KvUpdate(Struct, frozen=True, omit_defaults=True):
    """worker → preprocessors: what changed. `removed` before `stored`; `cleared` before both."""

    worker: str
    seq: int
    """1, 2, 3 … per worker; who misses one asks for a `KvSnapshot`."""
    stored: bytes = b""
    """Packed keys (`block_keys.pack`)."""
    removed: bytes = b""
    cleared: bool = False


class KvSnapshot(Struct, frozen=True):
    """A worker's answer to whoever asks: everything that it holds, `KvUpdate` number `seq` included."""

    worker: str
    seq: int
    keys: bytes

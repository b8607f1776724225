"""Makes the messages that describe one worker's index of KV blocks. Pure."""

from collections.abc import Iterator, Mapping

from schemas.control import KvSnapshot, KvUpdate
from services.tokenization.block_keys import pack
from services.worker.kv.blocks import KvBlockIndex

MAX_KEYS = 32768
"""Keys in one update; the others are sent in further ones."""
KEY_CHARS = 11
"""Characters of a key in JSON: eight bytes in base64."""


class KvUpdates:
    """The numbered messages of one worker."""

    def __init__(self, worker: str, index: KvBlockIndex) -> None:
        self._worker = worker
        self._index = index
        self._seq = 0

    def take(self) -> Iterator[KvUpdate]:
        """Takes the changes of the index: first what was cleared, then the removed keys, then the
        stored ones."""
        cleared, is_cached = self._index.take_changes()
        if cleared and not is_cached:
            yield self._update(cleared=True)
        for part in _parts(is_cached, added=False):
            yield self._update(removed=part, cleared=cleared)
            cleared = False
        for part in _parts(is_cached, added=True):
            yield self._update(stored=part, cleared=cleared)
            cleared = False

        is_offloaded = self._index.offloaded.take_changes()
        for part in _parts(is_offloaded, added=False):
            yield self._update(unloaded=part)
        for part in _parts(is_offloaded, added=True):
            yield self._update(offloaded=part)

    def _update(
        self,
        *,
        removed: bytes = b"",
        stored: bytes = b"",
        unloaded: bytes = b"",
        offloaded: bytes = b"",
        cleared: bool = False,
    ) -> KvUpdate:
        self._seq += 1
        return KvUpdate(
            self._worker,
            self._seq,
            stored=stored,
            removed=removed,
            cleared=cleared,
            ends=self._index.has_ends,
            offloaded=offloaded,
            unloaded=unloaded,
        )

    def snapshot(self, max_bytes: int) -> KvSnapshot:
        """Returns all blocks, after the updates so far. The oldest keys beyond `max_bytes` are left
        out."""
        most = max_bytes // KEY_CHARS
        newest = self._index.keys()[-most:]
        rest = most - len(newest)
        offloaded = self._index.offloaded.keys()[-rest:] if rest else []
        return KvSnapshot(
            self._worker,
            self._seq,
            pack(newest),
            ends=self._index.has_ends,
            offloaded=pack(offloaded),
        )


def _parts(changes: Mapping[int, bool], *, added: bool) -> Iterator[bytes]:
    """Returns the packed keys that were added, or removed, in the parts of single updates."""
    keys = [key for key, is_there in changes.items() if is_there == added]
    for start in range(0, len(keys), MAX_KEYS):
        yield pack(keys[start : start + MAX_KEYS])

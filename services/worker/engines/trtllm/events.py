"""Translates TensorRT-LLM's KV-cache events and iteration statistics. Pure.

Written for the results of `get_kv_cache_events` and `get_stats` in 1.2 and in 2026's main; fields
that only newer releases have are optional.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from services.worker.kv.events import BlockHash, BlocksRemoved, BlocksStored, CacheCleared, KvEvent


class TrtllmKvTranslator:
    """Turns the engine's event dicts into `KvEvent`s, in order.

    The engine also announces blocks that are not full; they and their removal are left out. Event
    ids increase by one for each rank: a gap means that the engine's ring buffer overflowed, and the
    content of that rank is unknown. With sliding-window layers every event comes once for each
    window; only the largest window, which holds the whole prompt, counts.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._last: dict[int, int] = {}
        """Rank → the id of its last event."""
        self._partial: set[tuple[int, BlockHash]] = set()
        """(rank, hash) of the blocks that were left out."""
        self._window: dict[int, int] = {}
        """Rank → its largest window so far."""

    def translate(self, events: Iterable[Mapping[str, Any]]) -> list[KvEvent]:
        """Translates the events of one poll. Skips those that are malformed or of unknown type."""
        translated: list[KvEvent] = []
        for event in events:
            rank = int(event.get("attention_dp_rank") or 0)
            if self._gap(rank, event.get("event_id")):
                self._partial = {block for block in self._partial if block[0] != rank}
                translated.append(CacheCleared(rank))
            data = event.get("data") or {}
            if not self._counts(rank, event.get("window_size")):
                continue
            if data.get("type") == "stored":
                translated += self._stored(rank, data)
            elif data.get("type") == "removed":
                translated += self._removed(rank, data)
        return translated

    def _gap(self, rank: int, event_id: Any) -> bool:
        if not isinstance(event_id, int):
            return False
        last = self._last.get(rank)
        self._last[rank] = event_id
        return last is not None and event_id > last + 1

    def _counts(self, rank: int, window: Any) -> bool:
        if not isinstance(window, int):
            return True
        self._window[rank] = max(window, self._window.get(rank, window))
        return window == self._window[rank]

    def _stored(self, rank: int, data: Mapping[str, Any]) -> list[KvEvent]:
        full: list[tuple[BlockHash, list[int]]] = []
        salt: str | None = None
        for block in data.get("blocks") or []:
            tokens = [token.get("token_id") for token in block.get("tokens") or []]
            block_hash = block.get("block_hash")
            has_ids = all(type(token) is int for token in tokens)
            if len(tokens) != self._block_tokens or not has_ids:
                self._partial.add((rank, block_hash))  # partly filled, or for an image
                break  # the following blocks have an unknown parent
            # A block that was announced half full is announced again when it is full, with the same
            # hash.
            self._partial.discard((rank, block_hash))
            salt = block.get("cache_salt") or salt
            full.append((block_hash, tokens))
        parent = data.get("parent_hash")
        if not full or (rank, parent) in self._partial:
            return []
        return [BlocksStored(parent, full, salt, rank)]

    def _removed(self, rank: int, data: Mapping[str, Any]) -> list[KvEvent]:
        hashes = data.get("block_hashes") or []
        full = [block for block in hashes if (rank, block) not in self._partial]
        self._partial.difference_update((rank, block) for block in hashes)
        return [BlocksRemoved(full, rank)] if full else []


class KvUse:
    """The share of the KV cache in use. With attention data parallelism each rank has a cache and
    statistics of its own."""

    def __init__(self) -> None:
        self.share: float | None = None
        """0 to 1, over all ranks; None until statistics have it."""
        self._blocks: dict[int, tuple[int, int]] = {}
        """Rank → used and existing blocks."""

    def note(self, stats: Mapping[str, Any]) -> None:
        """Notes an iteration's statistics."""
        cache = stats.get("kvCacheStats") or {}
        used = cache.get("usedNumBlocks")
        existing = cache.get("maxNumBlocks")
        if isinstance(used, int) and isinstance(existing, int) and existing > 0:
            rank = int(stats.get("attentionDpRank") or 0)
            self._blocks[rank] = (used, existing)
            all_used = sum(used for used, _ in self._blocks.values())
            all_existing = sum(existing for _, existing in self._blocks.values())
            self.share = min(1.0, all_used / all_existing)

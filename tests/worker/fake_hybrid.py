"""The prefix cache of a vLLM with several groups of layers, and the KV events that it publishes.

By `vllm/v1/core/kv_cache_coordinator.py` (`find_longest_cache_hit`), `block_pool.py`
(`cache_full_blocks`, `_maybe_evict_cached_block`) and
`single_type_kv_cache_manager.py` (`reachable_block_mask`) of 0.32.0.
"""

from dataclasses import dataclass
from math import lcm
from typing import Any

FULL, STATES, WINDOW = "full_attention", "mamba", "sliding_window"


@dataclass(frozen=True)
class FakeGroup:
    kind: str
    size: int
    window: int | None = None

    @property
    def needed(self) -> int | None:
        """Blocks at the end of a hit; None: all."""
        if self.kind == FULL:
            return None
        return 1 if self.window is None else max(-(-(self.window - 1) // self.size), 1)


class FakeHybridCache:
    def __init__(self, *groups: FakeGroup) -> None:
        self.groups = groups
        self.alignment = lcm(*(group.size for group in groups))
        self.stored: list[tuple[int, tuple[int, ...]]] = []
        """(group, all ids up to a block's end), each copy of a block."""

    def find(self, ids: list[int]) -> int:
        """How many tokens of a prompt can be reused: never its last."""
        for end in range((len(ids) - 1) // self.alignment * self.alignment, 0, -self.alignment):
            if all(self._allows(number, ids[:end]) for number in range(len(self.groups))):
                return end
        return 0

    def run(self, ids: list[int], kept: set[int]) -> list[dict[str, Any]]:
        """Computes a prompt, and returns the events. `kept`: ends, besides that of the prompt, at
        which groups keep states or windows."""
        found = self.find(ids)
        events = []
        last = (len(ids) - 1) // self.alignment * self.alignment
        full = len(ids) // self.alignment * self.alignment
        for number, group in enumerate(self.groups):
            ends = range(found + group.size, full + 1, group.size)
            held = [end for end in ends if self._keeps(group, end, {last, *kept})]
            self.stored += [(number, tuple(ids[:end])) for end in held]
            if ends:
                events.append(self._event(number, ids, found, full, held))
        return events

    def evict(self, at: int) -> dict[str, Any]:
        """Evicts one copy of a block."""
        number, ids = self.stored.pop(at % len(self.stored))
        return {
            "type": "BlockRemoved",
            "block_hashes": [_hash(ids)],
            "medium": "GPU",
            "group_idx": number,
        }

    def _allows(self, number: int, ids: list[int]) -> bool:
        group = self.groups[number]
        ends = range(group.size, len(ids) + 1, group.size)[-(group.needed or len(ids)) :]
        return all((number, tuple(ids[:end])) in self.stored for end in ends)

    def _keeps(self, group: FakeGroup, end: int, ends: set[int]) -> bool:
        needed = group.needed
        if needed is None:
            return True
        return any(end <= kept < end + needed * group.size for kept in ends)

    def _event(
        self, number: int, ids: list[int], start: int, end: int, held: list[int]
    ) -> dict[str, Any]:
        group = self.groups[number]
        return {
            "type": "BlockStored",
            "block_hashes": [_hash(tuple(ids[:end])) for end in held],
            "parent_block_hash": _hash(tuple(ids[:start])) if start else None,
            "token_ids": ids[start:end],
            "block_size": group.size,
            "medium": "GPU",
            "extra_keys": [None for _ in held],
            "group_idx": number,
            "kv_cache_spec_kind": group.kind,
            "kv_cache_spec_sliding_window": group.window,
        }


def _hash(ids: tuple[int, ...]) -> int:
    return hash(ids) & (2**64 - 1)

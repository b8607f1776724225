"""Which blocks of tokens a KV cache would hold: the bookkeeping of prefix sharing without the tensors."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks of `block_tokens` tokens, each known by all tokens from the prompt's start to its end; least recently
    used ones go first, and of one prompt the last block first, so that what is left is always a prefix."""

    def __init__(self, block_tokens: int, capacity_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._capacity = max(1, capacity_tokens // block_tokens)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def keys(self, token_ids: Sequence[int], salt: str | None = None) -> list[int]:
        """The keys of all whole blocks of `token_ids`. Equal keys mean equal tokens from the start, and equal salts."""
        return self._chain(hash(salt) if salt is not None else 0, token_ids)

    def extend(self, keys: Sequence[int], more_ids: Sequence[int], salt: str | None = None) -> list[int]:
        """`keys` and those of the blocks behind them; `more_ids` begin where the last of `keys` ends."""
        return [*keys, *(self._chain(keys[-1], more_ids) if keys else self.keys(more_ids, salt))]

    def _chain(self, key: int, token_ids: Sequence[int]) -> list[int]:
        data = array("I", token_ids).tobytes()
        step = self.block_tokens * array("I").itemsize
        keys = []
        for start in range(0, len(data) - step + 1, step):
            key = hash((key, data[start : start + step]))
            keys.append(key)
        return keys

    def match(self, keys: Sequence[int]) -> int:
        """How many leading blocks are held. They count as used now."""
        held = 0
        while held < len(keys) and keys[held] in self._blocks:
            held += 1
        self._touch(keys[:held])
        return held

    def insert(self, keys: Sequence[int]) -> None:
        """The blocks are computed. The oldest others go if there is no room."""
        self._touch(keys[: self._capacity])
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def _touch(self, keys: Sequence[int]) -> None:
        for key in reversed(keys):
            self._blocks[key] = None
            self._blocks.move_to_end(key)

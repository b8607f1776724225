"""Which blocks of tokens a KV cache would hold: the bookkeeping of prefix sharing without the tensors."""

from collections.abc import Sequence

from schemas.frames import pack_ids
from services.runtime.block_keys import block_keys
from services.worker.held_blocks import HeldBlocks


class PrefixCache:
    """Blocks of `block_tokens` tokens, each known by all tokens from the prompt's start to its end; least recently
    used ones go first, and of one prompt the last block first, so that what is left is always a prefix."""

    def __init__(self, block_tokens: int, capacity_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._blocks = HeldBlocks(max(1, capacity_tokens // block_tokens))

    def __len__(self) -> int:
        return len(self._blocks)

    def keys(self, token_ids: Sequence[int], salt: str | None = None) -> Sequence[int]:
        """The keys of all whole blocks of `token_ids`. Equal keys mean equal tokens from the start, and equal salts."""
        return list(block_keys(pack_ids(token_ids), self.block_tokens, salt=salt))

    def extend(self, keys: Sequence[int], more_ids: Sequence[int], salt: str | None = None) -> Sequence[int]:
        """`keys` and those of the blocks behind them; `more_ids` begin where the last of `keys` ends."""
        parent = keys[-1] if keys else None
        more = list(block_keys(pack_ids(more_ids), self.block_tokens, salt=salt, parent=parent))
        return [*keys, *more] if more else keys

    def match(self, keys: Sequence[int], most: int | None = None) -> int:
        """How many leading blocks are held, of the first `most`. They count as used now."""
        held = self._blocks.match(keys)
        if most is not None:
            held = min(held, most)
        self._blocks.use(keys[:held])
        return held

    def insert(self, keys: Sequence[int]) -> None:
        """The blocks are computed. The oldest others go if there is no room."""
        self._blocks.use(keys)

"""The prefix cache of a fake engine: chains of whole blocks, by salt."""

from collections.abc import Iterator
from typing import NamedTuple


class Block(NamedTuple):
    """A block that is new in the cache."""

    hash: int
    parent: int | None
    ids: list[int]


class FakeCache:
    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._chains: set[tuple[str | None, tuple[int, ...]]] = set()

    def __len__(self) -> int:
        return len(self._chains)

    def clear(self) -> None:
        self._chains.clear()

    def match(self, ids: list[int], salt: str | None) -> int:
        """How many tokens of a prompt are held: never its last."""
        held = 0
        while (end := held + self._block_tokens) < len(ids) and (
            salt,
            tuple(ids[:end]),
        ) in self._chains:
            held = end
        return held

    def store(self, ids: list[int], salt: str | None, since: int = 0) -> Iterator[Block]:
        """Stores the blocks that end after `since` tokens, and yields those that are new."""
        size = self._block_tokens
        for end in range(since // size * size + size, len(ids) + 1, size):
            key = (salt, tuple(ids[:end]))
            if key not in self._chains:
                self._chains.add(key)
                parent = hash((salt, tuple(ids[: end - size]))) if end > size else None
                yield Block(hash(key), parent, ids[end - size : end])

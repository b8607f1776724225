"""Assembles the blocks of a turn from its events. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from schemas.events import BlockStart, BlockStop, Delta, TurnEvent


class Block(NamedTuple):
    """A block with its text so far. `stop`: None if the block is still open."""

    start: BlockStart
    text: str
    stop: BlockStop | None


def blocks_of(events: Iterable[TurnEvent]) -> Iterator[Block]:
    """Yields the blocks of a turn, in order."""
    start: BlockStart | None = None
    texts: list[str] = []
    for event in events:
        if isinstance(event, BlockStart):
            start, texts = event, []
        elif isinstance(event, Delta):
            texts.append(event.text)
        elif isinstance(event, BlockStop) and start is not None:
            yield Block(start, "".join(texts), event)
            start = None
    if start is not None:
        yield Block(start, "".join(texts), None)

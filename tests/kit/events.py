"""The events of a turn, as parser and frontend write them."""

import asyncio
from collections.abc import Iterator
from typing import TypeAlias

from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    HostedResults,
    LoggedEvent,
    Prepared,
    TurnEvent,
    Usage,
)
from services.runtime.streams.turn_log import TurnLog
from turnwire_tools.dispatches import with_dispatches

USAGE = Usage(prompt=656, cached=600, output=74, reasoning=12)

Step: TypeAlias = list[TurnEvent] | asyncio.Event
"""What a turn does next: push these, or wait for that."""
Written: TypeAlias = str | tuple[str, ...]
"""The text of a block, or the pieces in which it comes."""


def reasoning(
    block: int, said: Written, *, seal: str | None = "c2VhbA", pieces: int = 2
) -> list[TurnEvent]:
    return [
        BlockStart(block, "reasoning"),
        *deltas(block, said, pieces),
        BlockStop(block, length=_length(said), seal=seal),
    ]


def text(block: int, said: Written, *, pieces: int = 2) -> list[TurnEvent]:
    return [
        BlockStart(block, "text"),
        *deltas(block, said, pieces),
        BlockStop(block, length=_length(said)),
    ]


def call(
    block: int,
    name: str,
    arguments: Written,
    *,
    call_id: str | None,
    complete: bool = True,
    pieces: int = 3,
) -> list[TurnEvent]:
    start = BlockStart(block, "tool_use", name=name, call_id=call_id)
    dispatch = [Dispatch(block, call_id, name, "".join(arguments))] if complete and call_id else []
    stop = BlockStop(block, complete=complete, length=_length(arguments))
    return [start, *deltas(block, arguments, pieces), *dispatch, stop]


def _length(said: Written) -> int:
    return len("".join(said))


def with_dispatch(*batches: list[TurnEvent]) -> list[list[TurnEvent]]:
    """The batches of one turn, with the dispatch of every complete call."""
    log = TurnLog()
    return [list(with_dispatches(logged(batch), log)) for batch in batches]


def logged(events: list[TurnEvent]) -> Iterator[LoggedEvent]:
    """The events, none of which is made in the frontend: a log has no such entry."""
    for event in events:
        assert not isinstance(event, Prepared | HostedResults)
        yield event


def deltas(block: int, said: Written, pieces: int) -> list[TurnEvent]:
    """A text in its pieces, or in so many equal ones."""
    if isinstance(said, str):
        size = max(1, -(-len(said) // pieces))
        said = tuple(said[at : at + size] for at in range(0, len(said), size))
    events: list[TurnEvent] = []
    offset = 0
    for piece in said:
        events.append(Delta(block, offset, piece))
        offset += len(piece)
    return events


def finish(
    blocks: int,
    reason: FinishReason = FinishReason.STOP,
    stop_string: str | None = None,
    usage: Usage = USAGE,
) -> Finish:
    return Finish(reason, blocks, usage, stop_string)


def hello() -> list[Step]:
    return [[*text(0, "Hello there"), finish(1)]]

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
    Prepared,
    TurnEvent,
    Usage,
)
from services.runtime.streams.turn_log import LoggedEvent, TurnLog, with_dispatches

USAGE = Usage(prompt=656, cached=600, output=74, reasoning=12)

Step: TypeAlias = list[TurnEvent] | asyncio.Event
"""What a turn does next: push these, or wait for that."""


def reasoning(
    block: int, text: str, *, seal: str | None = "c2VhbA", pieces: int = 2
) -> list[TurnEvent]:
    return [
        BlockStart(block, "reasoning"),
        *deltas(block, text, pieces),
        BlockStop(block, length=len(text), seal=seal),
    ]


def text(block: int, said: str, *, pieces: int = 2) -> list[TurnEvent]:
    return [
        BlockStart(block, "text"),
        *deltas(block, said, pieces),
        BlockStop(block, length=len(said)),
    ]


def call(
    block: int, name: str, arguments: str, *, call_id: str, complete: bool = True
) -> list[TurnEvent]:
    start = BlockStart(block, "tool_use", name=name, call_id=call_id)
    dispatch = [Dispatch(block, call_id, name, arguments)] if complete else []
    stop = BlockStop(block, complete=complete, length=len(arguments))
    return [start, *deltas(block, arguments, 3), *dispatch, stop]


def with_dispatch(*batches: list[TurnEvent]) -> list[list[TurnEvent]]:
    """The batches of one turn, with the dispatch of every complete call."""
    log = TurnLog()
    return [list(with_dispatches(logged(batch), log)) for batch in batches]


def logged(events: list[TurnEvent]) -> Iterator[LoggedEvent]:
    """The events, none of which is made in the frontend: a log has no such entry."""
    for event in events:
        assert not isinstance(event, Prepared | HostedResults)
        yield event


def deltas(block: int, said: str, pieces: int) -> list[TurnEvent]:
    size = max(1, -(-len(said) // pieces))
    return [Delta(block, at, said[at : at + size]) for at in range(0, len(said), size)]


def finish(
    blocks: int, reason: FinishReason = FinishReason.STOP, stop_string: str | None = None
) -> Finish:
    return Finish(reason, blocks, USAGE, stop_string)


def hello() -> list[Step]:
    return [[*text(0, "Hello there"), finish(1)]]

"""Adds the `Dispatch` of each complete call to block events that have none."""

from collections.abc import Iterable, Iterator

from schemas.events import BlockStop, Dispatch, LoggedEvent
from services.runtime.streams.turn_log import TurnLog


def with_dispatches(events: Iterable[LoggedEvent], log: TurnLog) -> Iterator[LoggedEvent]:
    """Yields block events of a recording or a family's parser, with the `Dispatch` of each complete
    call. Adds them to `log`, which must have all earlier events."""
    for event in events:
        log.append(event)
        if isinstance(event, Dispatch):
            continue
        if isinstance(event, BlockStop):
            dispatch = log.blocks[event.block].dispatch()
            if dispatch is not None:
                yield dispatch
        yield event

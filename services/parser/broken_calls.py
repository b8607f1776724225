"""Counts the broken calls of an attempt that has ended, for the metric. Pure."""

from schemas.events import BrokenCallCause, Finish, FinishReason, Interrupted
from services.parser.checked_calls import fault_of
from services.parser.turn_parse import TurnParse


def broken_calls(parse: TurnParse) -> list[BrokenCallCause]:
    """Returns why calls of an attempt are broken. Empty if another attempt repeats its calls."""
    blocks = parse.blocks
    end = parse.stream.log.terminal
    if isinstance(end, Interrupted) and end.broken_call is not None:
        return [end.broken_call.cause]
    if not isinstance(end, Finish):
        return []
    causes: list[BrokenCallCause | None] = [
        fault_of(parse.stream, blocks.parser, block, name) for block, name in blocks.calls.items()
    ]
    causes += ["unreadable"] * (blocks.parser.broken_calls - blocks.open_calls)
    if end.reason is FinishReason.STOP:
        causes += ["unfinished"] * blocks.open_calls
    return [cause for cause in causes if cause is not None]

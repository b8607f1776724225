"""Counts the broken calls of an attempt that has ended, for the metric. Pure."""

from schemas.events import BrokenCallCause, Finish, FinishReason, Interrupted
from services.parser.checked_calls import has_wrong_arguments, is_tool
from services.parser.turn_parse import TurnParse


def broken_calls(parse: TurnParse) -> list[BrokenCallCause]:
    """Returns why calls of an attempt are broken. Empty if another attempt repeats its calls."""
    stream, blocks = parse.stream, parse.blocks
    end = stream.log.terminal
    if isinstance(end, Interrupted) and end.broken_call is not None:
        return [end.broken_call.cause]
    if not isinstance(end, Finish):
        return []
    causes: list[BrokenCallCause] = ["unreadable"] * (
        blocks.parser.broken_calls - blocks.open_calls
    )
    if end.reason is FinishReason.STOP:
        causes += ["unfinished"] * blocks.open_calls
    for block, name in blocks.calls.items():
        _, stop = stream.log.bounds(block)
        if not is_tool(stream.context, name):
            causes.append("unknown_tool")
        elif stop is None or not stop.complete:
            continue
        elif has_wrong_arguments(stream, blocks.parser, block, name):
            causes.append("schema")
    return causes

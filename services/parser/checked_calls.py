"""Holds the first call of a turn back until it is known whether the call is broken. Pure.

A turn with `ParseContext.check_calls` has a `FirstCall`. Nothing of a broken call was sent, so
decoding can begin again before its opener.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from schemas.events import BlockEvent, BlockStart, BlockStop, BrokenCallCause, FinishReason
from schemas.frames import ParseContext
from services.families import TurnParser
from services.families.argument_types import fits
from services.parser.turn_stream import TurnStream


class CallState(Enum):
    """The state of a turn's first call.

    | state   | what the log lets out    | next                                                |
    |---------|--------------------------|-----------------------------------------------------|
    | AWAITED | all                      | HELD: the call begins, or is given up as text       |
    | HELD    | all before the call      | SENT: the call is good, or another one has no room, |
    |         |                          | or the turn ends in it; BROKEN: the call is broken  |
    | BROKEN  | all before the call      | none: the attempt ends here, and is made again      |
    | SENT    | all; nothing is held any | none: a client may run the call, so no later one is |
    |         | more                     | decoded again                                       |
    """

    AWAITED = "awaited"
    HELD = "held"
    BROKEN = "broken"
    SENT = "sent"


class FirstCall:
    """The first call of a turn. For each piece of text, `before_text` is called, then
    `before_events` with the events made of it, and `after_events` once they are in the log."""

    __slots__ = ("_log", "_name", "_parser", "_stream", "cause", "kept", "state")

    def __init__(self, stream: TurnStream, parser: TurnParser) -> None:
        self._stream = stream
        self._log = stream.log
        self._parser = parser
        self._name = ""
        """The tool, once the call has begun."""
        self.state = CallState.AWAITED
        self.cause: BrokenCallCause = "unreadable"
        """Why the call is broken; meaningful if it is."""
        self.kept = 0
        """The number of tokens that stay if the call is decoded again: all that the client may have
        text of, and all before the call's opener."""

    def before_text(self, tokens: int) -> None:
        """Notes that text is parsed next that comes after the first `tokens` tokens."""
        if self.state is not CallState.AWAITED:
            return
        # A blank token that is kept would come without its log probability in the second attempt.
        if self._stream.context.logprobs is None and self._parser.is_outside_calls:
            self.kept = max(self.kept, tokens)

    def before_events(self, events: Sequence[BlockEvent]) -> None:
        """Holds events back that are added to the log next, if the call is among them."""
        if self.state is CallState.AWAITED and (self._is_given_up or any(map(_tool, events))):
            self.state = CallState.HELD
            self._log.hold()

    def after_events(self, events: Sequence[BlockEvent], end: FinishReason | None) -> None:
        """Checks the call, if it is among these events, which are in the log. `end`: why the turn
        has ended; a call that was cut off is not broken."""
        if self.state is CallState.AWAITED and events:
            self.kept = len(self._stream.ids)
        if self.state is not CallState.HELD:
            return
        for event in events:
            if isinstance(event, BlockStart):
                self._name = _tool(event)
                if self._name and not is_tool(self._stream.context, self._name):
                    self._break("unknown_tool")
                    return
            elif isinstance(event, BlockStop) and event.complete and self._name:
                if has_wrong_arguments(self._stream, self._parser, event.block, self._name):
                    self._break("schema")
                else:
                    self._send()
                return
        if self._is_given_up and end in (None, FinishReason.STOP):
            self._break("unreadable" if end is None else "unfinished")

    @property
    def _is_given_up(self) -> bool:
        return self._parser.broken_calls > 0

    def _break(self, cause: BrokenCallCause) -> None:
        used = len(self._stream.ids)
        # Another call as long as this one must fit into the turn's limit.
        if self._stream.context.max_tokens - used > used - self.kept > 0:
            self.state = CallState.BROKEN
            self.cause = cause
        else:
            self._send()

    def _send(self) -> None:
        self.state = CallState.SENT
        self._log.release()


def _tool(event: BlockEvent) -> str:
    """Returns the tool of a call that begins; "" for any other event."""
    if isinstance(event, BlockStart) and event.kind == "tool_use":
        return event.name or ""
    return ""


def is_tool(context: ParseContext, name: str) -> bool:
    """Returns whether a turn may call this tool."""
    return name in (context.allowed or [tool.name for tool in context.tools])


def has_wrong_arguments(stream: TurnStream, parser: TurnParser, block: int, name: str) -> bool:
    """Returns whether the arguments of a whole call lack what its tool requires. They are checked
    in turns with the rule `schema`."""
    if stream.context.check_calls != "schema":
        return False
    try:
        arguments = msgspec.json.decode(stream.log.text(block))
    except (ValueError, RecursionError):  # JSON that only this decoder refuses
        return False
    return not fits(arguments, parser.tools.schema(name))

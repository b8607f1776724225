"""Withholds the first call of a turn until it is known whether the call is broken. Pure.

A turn with `ParseContext.check_calls` has a `FirstCall`. Nothing of a broken call was sent, so
decoding can begin again before its opener.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from schemas.events import BlockEvent, BrokenCallCause, FinishReason
from services.families import TurnParser
from services.families.argument_types import fits
from services.parser.turn_stream import TurnStream


class CallState(Enum):
    """The state of a turn's first call.

    | state    | what can be read of the log | next                                              |
    |----------|-----------------------------|---------------------------------------------------|
    | AWAITED  | all                         | WITHHELD: the call begins, or is given up as text |
    | WITHHELD | all before the call         | SENT: it is whole and good, or another has no     |
    |          |                             | room, or the turn ends; BROKEN: it is broken      |
    | BROKEN   | all before the call         | none: another attempt decodes the call again      |
    | SENT     | all                         | none: a client may run the call, so nothing that  |
    |          |                             | follows is decoded again                          |
    """

    AWAITED = "awaited"
    WITHHELD = "withheld"
    BROKEN = "broken"
    SENT = "sent"


class FirstCall:
    """The first call of a turn. For each piece of text, `before_text` is called before it is
    parsed, and `check` once its events are in the log."""

    __slots__ = ("_calls", "_parser", "_stream", "cause", "kept", "state")

    def __init__(self, stream: TurnStream, parser: TurnParser, calls: Mapping[int, str]) -> None:
        """`calls`: the block and tool of each call in the log, also of those that begin later."""
        self._stream = stream
        self._parser = parser
        self._calls = calls
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

    def check(
        self, events: Sequence[BlockEvent], place: tuple[int, int], end: FinishReason | None
    ) -> None:
        """Checks the call. `events`: the newest, which were added to the log at `place`; `end`: why
        the turn has ended. A call that was cut off is not broken."""
        stream = self._stream
        is_given_up = self._parser.broken_calls > 0
        if self.state is CallState.AWAITED:
            if self._calls or is_given_up:
                self.state = CallState.WITHHELD
                stream.log.withhold(place)
            elif events:
                self.kept = len(stream.ids)
        if self.state is not CallState.WITHHELD:
            return
        for block, name in self._calls.items():
            cause = fault_of(stream, self._parser, block, name)
            if cause is not None:
                self._break(cause)
                return
            if stream.log.blocks[block].is_whole:
                self._send()
                return
        if is_given_up and end in (None, FinishReason.STOP):
            self._break("unreadable" if end is None else "unfinished")

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
        self._stream.log.release()


def fault_of(
    stream: TurnStream, parser: TurnParser, block: int, name: str
) -> BrokenCallCause | None:
    """Returns why no tool can run a call that its parser can read. The arguments of a whole one are
    checked in turns with the rule `schema`."""
    context = stream.context
    if name not in (context.allowed or parser.tools):
        return "unknown_tool"
    if context.check_calls != "schema" or not stream.log.blocks[block].is_whole:
        return None
    try:
        arguments = msgspec.json.decode(stream.log.blocks[block].text())
    except (ValueError, RecursionError):  # JSON that only this decoder refuses
        return None
    return None if fits(arguments, parser.tools.schema(name)) else "schema"

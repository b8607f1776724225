"""Finds the broken calls of a turn, and decides which of them is decoded again. Pure.

A turn with `ParseContext.check_calls` holds its first call back until it is whole: so nothing of a
broken one was sent, and decoding can begin again before its opener. After the first call that was
sent, and in an attempt after a broken call, nothing is held back.
"""

from collections.abc import Sequence

import msgspec

from schemas.events import BlockEvent, BlockStart, BlockStop, BrokenCallCause, FinishReason
from services.families import TurnParser
from services.families.argument_types import fits
from services.parser.turn_stream import TurnStream


class CheckedCalls:
    """The calls of one attempt."""

    __slots__ = (
        "_given_up",
        "_log",
        "_name",
        "_names",
        "_parser",
        "_stream",
        "again",
        "broken",
        "kept",
        "may_repeat",
    )

    def __init__(self, stream: TurnStream, parser: TurnParser) -> None:
        context = stream.context
        self._stream = stream
        self._log = stream.log
        self._parser = parser
        self._names = frozenset(context.allowed) or frozenset(tool.name for tool in context.tools)
        self._name = ""
        """The tool of the last call."""
        self._given_up = 0
        """How many of the parser's `broken_calls` were recorded."""
        self.broken: list[BrokenCallCause] = []
        """Why calls of this attempt are broken, for each."""
        self.again = False
        """The last broken call is decoded again: nothing of it may be sent, nor of what follows."""
        self.may_repeat = bool(context.check_calls) and context.broken_call is None
        """The next call can be decoded again if it is broken."""
        self.kept = 0
        """The number of tokens that stay if the next call is decoded again: all that the client may
        have text of, and all before the call's opener."""

    def before(self, tokens: int) -> None:
        """Notes that text is parsed next that comes after the first `tokens` tokens."""
        if not self.may_repeat or self._log.is_held:
            return
        # A blank token that is kept would come without its log probability in the second attempt.
        if self._stream.context.logprobs is None and self._parser.is_outside_calls:
            self.kept = max(self.kept, tokens)

    def hold(self, events: Sequence[BlockEvent]) -> None:
        """Holds back the next events of the log, if they begin a call or give one up."""
        if self.may_repeat and not self._log.is_held and (_begins_call(events) or self._has_news):
            self._log.hold()

    def add(self, events: Sequence[BlockEvent], reason: FinishReason | None = None) -> None:
        """Takes events that are in the log. `reason`: why the turn has ended; a call that was cut
        off is not broken."""
        for event in events:
            if isinstance(event, BlockStart):
                self._start(event)
            elif isinstance(event, BlockStop) and event.complete and self._name:
                self._complete(event.block)
        if self._has_news and reason is None:
            self._record("unreadable")
        elif self._has_news and reason is FinishReason.STOP:
            self._record("unfinished")
        self._given_up = self._parser.broken_calls
        if events and self.may_repeat and not self._log.is_held:
            self.kept = len(self._stream.ids)

    def accept(self) -> None:
        """Lets everything be sent, from now on as it is written."""
        self.may_repeat = False
        self._log.release()

    @property
    def _has_news(self) -> bool:
        return self._parser.broken_calls > self._given_up

    def _start(self, event: BlockStart) -> None:
        self._name = ""
        if event.kind == "tool_use":
            self._name = event.name or ""
            if self._name not in self._names:
                self._name = ""
                self._record("unknown_tool")

    def _complete(self, block: int) -> None:
        """Checks the arguments of a call that its parser could read."""
        context = self._stream.context
        if context.check_calls == "schema" and not self._fits(block):
            self._record("schema")
        elif not self.again:
            self.accept()
        self._name = ""

    def _fits(self, block: int) -> bool:
        schema = self._parser.tools.schema(self._name)
        try:
            arguments = msgspec.json.decode(self._log.text(block))
        except (ValueError, RecursionError):  # JSON that only this decoder refuses
            return True
        return fits(arguments, schema)

    def _record(self, cause: BrokenCallCause) -> None:
        self.broken.append(cause)
        if self.may_repeat and not self.again:
            self.again = self._has_room
            if not self.again:
                self.accept()

    @property
    def _has_room(self) -> bool:
        """Whether another call as long as this one fits into the turn's limit."""
        used = len(self._stream.ids)
        return self._stream.context.max_tokens - used > used - self.kept > 0


def _begins_call(events: Sequence[BlockEvent]) -> bool:
    return any(isinstance(event, BlockStart) and event.kind == "tool_use" for event in events)

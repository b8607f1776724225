"""Reads the text of a turn into the blocks of its log, and counts the tokens of its reasoning.
Pure."""

from schemas.events import (
    BlockEvent,
    BlockStop,
    BrokenCallCause,
    Finish,
    FinishReason,
    Interrupted,
)
from services.families import TurnParser
from services.families.grammar.scanner import escaped
from services.parser.checked_calls import CallState, FirstCall, fault_of
from services.parser.event_builder import EventBuilder
from services.parser.turn_stream import TurnStream


class BlockReader:
    """Feeds the family's parser, and adds its events to the log. Reads no more text once `cut` is
    set."""

    __slots__ = (
        "_builder",
        "_counted",
        "_stream",
        "broken_call",
        "calls",
        "cut",
        "ends",
        "first_call",
        "open_calls",
        "parser",
        "reasoning_tokens",
    )

    def __init__(self, stream: TurnStream, parser: TurnParser, builder: EventBuilder) -> None:
        self._stream = stream
        self.parser = parser
        self._builder = builder
        self.calls = builder.calls
        self.first_call: FirstCall | None = None
        """The first call, while it may still be decoded again."""
        self.broken_call: FirstCall | None = None
        """The first call, if it is decoded again: this attempt ends."""
        context = stream.context
        if context.check_calls and context.broken_call is None:
            self.first_call = FirstCall(stream, parser, builder.calls)
        self.open_calls = 0
        """The number of calls that had no end when the engine ended the turn."""
        self.cut: FinishReason | None = None
        """Why the turn has ended before the engine's end."""
        self.ends: list[int] = []
        """The number of tokens with which each block was complete."""
        self.reasoning_tokens = 0
        """The reasoning tokens among the first `_counted` tokens."""
        self._counted = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that has cut the turn."""
        return self._builder.stop_string

    def read(self, text: str) -> None:
        """Reads text, up to the end of the last token's."""
        if self.first_call is not None:
            self.first_call.before_text(len(self._stream.ids) - 1)
        self._add(self._parsed(text))

    def finish(self, reason: FinishReason) -> None:
        """Closes all blocks, because the engine has ended the turn."""
        if self.first_call is not None:
            self.first_call.before_text(len(self._stream.ids))
        broken_calls = self.parser.broken_calls
        events = self.parser.finish(reason)
        self.open_calls = self.parser.broken_calls - broken_calls
        self._add(events, reason)

    def close(self) -> None:
        """Closes all blocks, because the turn is cut here."""
        self._builder.add(self.parser.finish(FinishReason.STOP_STRING), self.reasoning_tokens)

    def broken_calls(self) -> list[BrokenCallCause]:
        """Returns why calls of a turn that has ended are broken, for the metric. Empty if another
        attempt repeats its calls."""
        end = self._stream.log.terminal
        if isinstance(end, Interrupted) and end.broken_call is not None:
            return [end.broken_call.cause]
        if not isinstance(end, Finish):
            return []

        parser = self.parser
        faults = [fault_of(self._stream, parser, block, name) for block, name in self.calls.items()]
        causes = [cause for cause in faults if cause is not None]
        causes += ["unreadable"] * (parser.broken_calls - self.open_calls)
        if end.reason is FinishReason.STOP:
            causes += ["unfinished"] * self.open_calls
        return causes

    def skip(self, text: str) -> bool:
        """Adds text in a plain stretch to the open block, without the parser. Returns False, and
        changes nothing, for text that must be read."""
        stretch = self.parser.stretch
        if stretch is None or stretch.trigger(text) is not None:
            return False
        self.add_plain(escaped(text) if stretch.escape else text)
        return True

    def add_plain(self, text: str) -> None:
        """Adds text that has skipped the parser to the open block."""
        self.parser.count_passed(text)
        self._stream.log.add(text)

    def count_reasoning(self) -> None:
        """Counts all tokens so far. Those that skipped the parser cannot have changed the block."""
        self._count(len(self._stream.ids), reasoning=self.parser.in_reasoning)

    def _parsed(self, text: str) -> list[BlockEvent]:
        """Returns the parser's events for a text. In a thought, tokens without an event are counted
        when it is certain to what they belong: its own closer is the thought's, the marker of the
        next block is not."""
        parser = self.parser
        tokens = len(self._stream.ids)
        was_reasoning = parser.in_reasoning
        if parser.stretch is not None:  # also the tokens that skipped the parser
            self._count(tokens - 1, reasoning=was_reasoning)

        events = parser.feed(text)
        if not parser.in_reasoning:
            if was_reasoning:
                self._count_closed_thought(tokens, text)
            self._count(tokens, reasoning=False)
        elif events or not was_reasoning:
            thinks = bool(events) and not isinstance(events[-1], BlockStop)
            self._count(tokens, reasoning=thinks)
        return events

    def _count_closed_thought(self, tokens: int, text: str) -> None:
        """Counts the tokens of a thought that was closed by the last token's text, or before it."""
        after = self.parser.after_thought
        if after is None:
            return
        if after >= len(text):  # the last token is after the thought
            tokens -= 1
        self._count(tokens, reasoning=True)

    def _count(self, tokens: int, *, reasoning: bool) -> None:
        """Counts the tokens up to number `tokens` that were not counted before."""
        new = tokens - self._counted
        if new <= 0:
            return
        self._counted = tokens
        if reasoning:
            self.reasoning_tokens += new

    def _add(self, events: list[BlockEvent], reason: FinishReason | None = None) -> None:
        """Adds events to the log. `reason`: why the turn has ended."""
        for event in events:
            if isinstance(event, BlockStop):
                self.ends.append(len(self._stream.ids))
        call = self.first_call
        if call is None:
            self._builder.add(events, self.reasoning_tokens)
        else:
            place = self._stream.log.end
            self._builder.add(events, self.reasoning_tokens)
            call.check(events, place, reason)
            if call.state is CallState.SENT:
                self.first_call = None
            elif call.state is CallState.BROKEN:
                self.broken_call = call
        self.cut = self._builder.cut

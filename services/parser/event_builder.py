"""Writes a parser's events into the turn's log, with stop strings, barred calls, seals and call
ids. Pure."""

from schemas.events import BlockEvent, BlockStart, BlockStop, Delta, FinishReason, TokenLogprob
from schemas.frames import ParseContext
from services.families.verbatim import VERBATIM
from services.ledger.evidence import call_id
from services.parser.stop_strings import StopStrings
from services.parser.trace import Trace
from services.runtime.storage.seal import TenantSealer
from services.runtime.streams.turn_log import TurnLog


class EventBuilder:
    """Writes one turn's blocks into its log. Takes no more events once `cut` is set."""

    def __init__(
        self, turn: str, context: ParseContext, log: TurnLog, sealer: TenantSealer
    ) -> None:
        self._turn = turn
        self._context = context
        self._log = log
        self._sealer = sealer
        self._allowed = frozenset(context.allowed)
        self._stop = StopStrings(context.stop) if context.stop else None
        self.cut: FinishReason | None = None
        """Why the turn has ended before the engine's end."""
        self.stop_string: str | None = None
        """The stop string that has ended the turn."""
        self._held: BlockStart | None = None
        """A text block without visible text so far."""
        self._held_text = ""
        """The block's leading white space, which is sent with its first visible character."""
        self._held_logprobs: list[TokenLogprob] = []
        self._shown = 0
        """Characters of the open text block that were logged."""
        self._suffix = ""
        """The end of the text that replaces a barred call."""
        self.reasoning_tokens = 0
        """The turn's reasoning tokens so far; set by the caller."""
        self._reported = 0
        """Reasoning tokens of the thoughts that have ended."""

    @property
    def searches(self) -> bool:
        """Whether all text must pass through here, because it may contain a stop string."""
        return self._stop is not None

    def add_traced(self, trace: Trace, events: list[BlockEvent]) -> None:
        """As `add`, with the log probabilities of each event's tokens."""
        for event, logprobs in zip(events, trace.match(events), strict=True):
            if self._held is not None:
                self._held_logprobs += logprobs
            elif logprobs and not self._suffix:
                self._log.add_logprobs(logprobs)
            self.add([event])
            if self.cut is not None:
                return

    def add(self, events: list[BlockEvent]) -> None:
        """Writes the parser's events, in order."""
        for event in events:
            if isinstance(event, Delta):
                if self._stop is None or not self._in_text():
                    self._log.add(event.text)
                else:
                    self._search(self._stop, event)
            elif isinstance(event, BlockStart):
                self._start(event)
            else:
                self._end(event)
            if self.cut is not None:
                return

    def _in_text(self) -> bool:
        return self._held is not None or (self._log.open_kind == "text" and not self._suffix)

    def _start(self, event: BlockStart) -> None:
        if event.kind == "tool_use" and self._allowed and event.name not in self._allowed:
            self._log.append(BlockStart(event.block, "text"))
            self._log.add(f"{event.name}(")
            self._suffix = ")"
            return
        if event.kind == "tool_use":
            event = BlockStart(
                event.block, event.kind, event.name, call_id(self._turn, event.block)
            )
        if event.kind == "text" and self._stop is not None:
            self._held, self._held_text, self._held_logprobs, self._shown = event, "", [], 0
            return
        self._log.append(event)

    def _search(self, strings: StopStrings, event: Delta) -> None:
        shown, stop = strings.feed(event.text)
        if stop is not None and self._context.include_stop:
            shown += stop
        self._show(event.block, shown)
        if stop is not None:
            if self._held is None:
                self._log.append(BlockStop(event.block, True, self._shown))
            self._held = None
            self.cut, self.stop_string = FinishReason.STOP_STRING, stop

    def _show(self, block: int, text: str, *, blank: bool = False) -> None:
        """Adds text to a text block. A block of white space only is held back, unless `blank`."""
        if self._held is not None:
            self._held_text += text
            if not (
                self._held_text
                if blank or self._context.family == VERBATIM.name
                else self._held_text.strip()
            ):
                return
            self._log.append(self._held)
            self._log.add_logprobs(self._held_logprobs)
            self._held, text = None, self._held_text
        if not text:
            return
        self._log.append(Delta(block, self._shown, text))
        self._shown += len(text)

    def _end(self, event: BlockStop) -> None:
        if self._suffix:
            self._log.add(self._suffix)
            self._suffix = ""
            self._log.append(BlockStop(event.block, True, self._log.end[1]))
            return
        kind = self._log.open_kind if self._held is None else "text"
        if kind == "text" and self._stop is not None:
            self._show(event.block, self._stop.flush(), blank=True)
            event = BlockStop(event.block, event.complete, self._shown)
        elif kind == "reasoning":
            seal = self._sealer.seal(self._log.text(event.block), self._turn)
            tokens = self.reasoning_tokens - self._reported if self._context.count_thoughts else 0
            self._reported = self.reasoning_tokens
            event = BlockStop(event.block, event.complete, event.length, seal, tokens)
        self._log.append(event)
        if kind == "tool_use" and event.complete and self._context.calls == "single":
            self.cut = FinishReason.STOP

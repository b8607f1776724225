"""From what the parser says to what the frontend is told: stop strings, barred calls, seals, call ids. Pure."""

from schemas.events import BlockEvent, BlockStart, BlockStop, Delta, FinishReason, TokenLogprob
from schemas.frames import ParseContext
from services.parser.callids import call_id
from services.parser.stop import StopStrings
from services.parser.trace import Trace
from services.parser.verbatim import VERBATIM
from services.runtime.seal import Sealer
from services.runtime.turnlog import TurnLog


class Teller:
    """Writes one turn's blocks into its log. Once `cut` is set, nothing more may be told."""

    __slots__ = (
        "_allowed",
        "_barred",
        "_context",
        "_hold",
        "_lead",
        "_log",
        "_sealer",
        "_shown",
        "_stop",
        "_turn",
        "_untold",
        "cut",
        "stop_string",
    )

    def __init__(self, turn: str, context: ParseContext, log: TurnLog, sealer: Sealer) -> None:
        self._turn = turn
        self._context = context
        self._log = log
        self._sealer = sealer
        self._allowed = frozenset(context.allowed)
        self._stop = StopStrings(context.stop) if context.stop else None
        self.cut: FinishReason | None = None
        """Why the turn has ended although the engine would go on."""
        self.stop_string: str | None = None
        """The one that has ended it."""
        self._hold: BlockStart | None = None
        """A text block of which nothing can be shown yet."""
        self._lead = ""
        """The blanks that it begins with: shown with the first character that is none."""
        self._shown = 0
        """Characters of the open text block that passed the stop strings."""
        self._untold: list[TokenLogprob] = []
        """Log probabilities of that block's tokens."""
        self._barred = ""
        """What ends the text that a call has become which may not be made."""

    @property
    def watches(self) -> bool:
        """Text must come through here: it may hold a stop string."""
        return self._stop is not None

    def take_traced(self, trace: Trace, events: list[BlockEvent]) -> None:
        """As `take`, with the log probabilities of the tokens behind each event."""
        for event, told in zip(events, trace.spoken(events), strict=True):
            if self._hold is not None:
                self._untold += told
            elif told and not self._barred:
                self._log.tell(told)
            self.take([event])
            if self.cut is not None:
                return

    def take(self, events: list[BlockEvent]) -> None:
        """What the parser has said, in order."""
        for event in events:
            if isinstance(event, Delta):
                if self._stop is None or not self._in_text():
                    self._log.add(event.text)
                else:
                    self._take_text(event)
            elif isinstance(event, BlockStart):
                self._start(event)
            else:
                self._close(event)
            if self.cut is not None:
                return

    def _in_text(self) -> bool:
        return self._hold is not None or (self._log.open_kind == "text" and not self._barred)

    def _start(self, event: BlockStart) -> None:
        if event.kind == "tool_use" and self._allowed and event.name not in self._allowed:
            self._log.append(BlockStart(event.block, "text"))
            self._log.add(f"{event.name}(")
            self._barred = ")"
            return
        if event.kind == "tool_use" and event.call_id is None:
            event = BlockStart(event.block, event.kind, event.name, call_id(self._turn, event.block))
        if event.kind == "text" and self._stop is not None:
            self._hold, self._lead, self._shown, self._untold = event, "", 0, []
            return
        self._log.append(event)

    def _take_text(self, event: Delta) -> None:
        assert self._stop is not None
        shown, stop = self._stop.feed(event.text)
        if stop is not None and self._context.include_stop:
            shown += stop
        self._show(event.block, shown)
        if stop is not None:
            if self._hold is None:
                self._log.append(BlockStop(event.block, True, self._shown))
            self._hold = None
            self.cut, self.stop_string = FinishReason.STOP_STRING, stop

    def _show(self, block: int, text: str, *, blank: bool = False) -> None:
        """Shows text of a text block; with `blank` also such as has nothing to see in it."""
        if self._hold is not None:
            self._lead += text
            if not (self._lead if blank or self._context.family == VERBATIM.name else self._lead.strip()):
                return
            self._log.append(self._hold)
            self._log.tell(self._untold)
            self._hold, text = None, self._lead
        if not text:
            return
        self._log.append(Delta(block, self._shown, text))
        self._shown += len(text)

    def _close(self, event: BlockStop) -> None:
        if self._barred:
            self._log.add(self._barred)
            self._barred = ""
            self._log.append(BlockStop(event.block, True, self._log.end[1]))
            return
        kind = self._log.open_kind if self._hold is None else "text"
        if kind == "text" and self._stop is not None:
            self._show(event.block, self._stop.flush(), blank=True)
            event = BlockStop(event.block, event.complete, self._shown)
        elif kind == "reasoning":
            seal = self._sealer.seal(self._log.text(event.block))
            event = BlockStop(event.block, event.complete, event.length, seal)
        self._log.append(event)
        if kind == "tool_use" and event.complete and self._context.calls == "single":
            self.cut = FinishReason.STOP

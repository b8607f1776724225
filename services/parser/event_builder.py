"""Writes a parser's events into the turn's log, with stop strings, barred calls, seals and call
ids. Pure."""

from collections.abc import Sequence

from schemas.events import BlockEvent, BlockStart, BlockStop, Delta, FinishReason
from schemas.requests import ParseContext
from services.ledger.turns.evidence import call_id
from services.parser.searched_text import SearchedText
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
        self._text = SearchedText(context, log)
        """The text blocks, for a request with stop strings."""
        self.calls: dict[int, str] = {}
        """The tool of each call, by its block, also of barred ones."""
        self.cut: FinishReason | None = None
        """Why the turn has ended before the engine's end."""
        self.stop_string: str | None = None
        """The stop string that has ended the turn."""
        self._suffix = ""
        """The end of the text that replaces a barred call, while the call is open."""
        self._reported = 0
        """Reasoning tokens of the thoughts that have ended."""

    def add(self, events: Sequence[BlockEvent], reasoning_tokens: int) -> None:
        """Writes the parser's events, in order. `reasoning_tokens`: those of the turn so far."""
        for event in events:
            if isinstance(event, Delta):
                self._add_text(event)
            elif isinstance(event, BlockStart):
                self._start(event)
            else:
                self._end(event, reasoning_tokens)
            if self.cut is not None:
                return

    def _is_searched(self) -> bool:
        """Returns whether the open block is text that may contain a stop string."""
        if not self._context.stop:
            return False
        if self._text.is_buffering:
            return True
        return self._log.open_kind == "text" and not self._suffix

    def _add_text(self, event: Delta) -> None:
        if not self._is_searched():
            self._log.add(event.text)
            return
        self.stop_string = self._text.add(event.block, event.text)
        if self.stop_string is not None:
            self.cut = FinishReason.STOP_STRING

    def _start(self, event: BlockStart) -> None:
        if event.kind == "text" and self._context.stop:
            self._text.open(event)
        elif event.kind != "tool_use":
            self._log.append(event)
        else:
            self._start_call(event, event.name or "")

    def _start_call(self, event: BlockStart, name: str) -> None:
        self.calls[event.block] = name
        if self._allowed and name not in self._allowed:
            self._log.append(BlockStart(event.block, "text"))
            self._log.add(f"{name}(")
            self._suffix = ")"
        else:
            id = call_id(self._turn, event.block)
            self._log.append(BlockStart(event.block, event.kind, event.name, id))

    def _end(self, event: BlockStop, reasoning_tokens: int) -> None:
        if self._suffix:
            self._log.add(self._suffix)
            self._suffix = ""
            self._log.append(BlockStop(event.block, True, self._log.end[1]))
            return

        if self._is_searched():
            self._log.append(self._text.end(event))
            return

        kind = self._log.open_kind
        if kind == "reasoning":
            event = self._sealed(event, reasoning_tokens)
        self._log.append(event)
        if kind == "tool_use" and event.complete and self._context.calls == "single":
            self.cut = FinishReason.STOP

    def _sealed(self, event: BlockStop, reasoning_tokens: int) -> BlockStop:
        """Returns the end of a thought, with its seal and its number of tokens."""
        seal = self._sealer.seal(self._log.blocks[event.block].text(), self._turn)
        tokens = 0
        if self._context.count_thoughts:
            tokens = reasoning_tokens - self._reported
        self._reported = reasoning_tokens
        return BlockStop(event.block, event.complete, event.length, seal, tokens)

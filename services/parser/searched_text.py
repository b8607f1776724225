"""Writes the text blocks of a turn with stop strings into its log: a block is cut where a stop
string begins, and one without visible text is left out. Pure."""

from schemas.events import BlockStart, BlockStop, TokenLogprob
from schemas.requests import ParseContext
from services.families.family import VERBATIM
from services.parser.stop_strings import StopStrings
from services.runtime.streams.turn_log import TurnLog


class SearchedText:
    """The text blocks of one turn. A block is buffered until its first visible character."""

    def __init__(self, context: ParseContext, log: TurnLog) -> None:
        self._context = context
        self._log = log
        self._strings = StopStrings(context.stop)
        self._buffered: BlockStart | None = None
        """A text block without visible text so far."""
        self._buffered_text = ""
        """The block's leading white space, which is sent with its first visible character."""
        self._buffered_logprobs: list[TokenLogprob] = []
        self._shown = 0
        """Characters of the open block that were logged."""

    @property
    def is_buffering(self) -> bool:
        """Whether the open block is buffered: it has no visible character so far."""
        return self._buffered is not None

    def open(self, start: BlockStart) -> None:
        """Opens a block."""
        self._buffered = start
        self._buffered_text = ""
        self._buffered_logprobs = []
        self._shown = 0

    def buffer_logprobs(self, logprobs: list[TokenLogprob]) -> None:
        """Adds tokens of the buffered block."""
        self._buffered_logprobs += logprobs

    def add(self, block: int, text: str) -> str | None:
        """Adds text to the open block. Returns the stop string that has ended it."""
        shown, stop = self._strings.feed(text)
        if stop is None:
            self._show(shown)
            return None

        self._show(shown + stop if self._context.include_stop else shown)
        if self._buffered is None:
            self._log.append(BlockStop(block, True, self._shown))
        self._buffered = None
        return stop

    def end(self, stop: BlockStop) -> BlockStop:
        """Adds the text that may have been the start of a stop string. Returns the block's end."""
        self._show(self._strings.flush(), blank=True)
        return BlockStop(stop.block, stop.complete, self._shown)

    def _show(self, text: str, *, blank: bool = False) -> None:
        """Logs text. A block of white space only is buffered, unless `blank`."""
        if self._buffered is not None:
            self._buffered_text += text
            if not self._is_visible(self._buffered_text, blank=blank):
                return
            text = self._buffered_text
            self._log.append(self._buffered)
            self._log.add_logprobs(self._buffered_logprobs)
            self._buffered = None
        if text:
            self._log.add(text)
            self._shown += len(text)

    def _is_visible(self, text: str, *, blank: bool) -> bool:
        if blank or self._context.family == VERBATIM.name:
            return bool(text)
        return bool(text.strip())

"""Renders the events of a turn block by block: the part of a renderer that does not depend on the API."""

from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from schemas.errors import ErrorInfo
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    HostedResults,
    OutputTokens,
    TokenLogprob,
    TurnEvent,
    failure_of,
)

_encode = msgspec.json.Encoder().encode


class TurnRenderer:
    """Renders one turn. A subclass adds the bytes of each event to `out`; what it does not override has no form."""

    plain: tuple[bytes, bytes] | None = None
    """Set where the next text delta is only spliced in between these and changes nothing else."""

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """See `Renderer.events`. Deltas that came together are rendered together, as one."""
        if self.plain is not None and len(events) == 1 and type(first := events[0]) is Delta and first.text:
            head, tail = self.plain
            return head + _encode(first.text) + tail
        out: list[bytes] = []
        texts: list[str] = []
        tokens: list[TokenLogprob] = []
        for event in events:
            if isinstance(event, Delta):
                texts.append(event.text)
                if event.logprobs:
                    tokens += event.logprobs
                continue
            if texts:
                self._delta("".join(texts), tokens, out)
                texts, tokens = [], []
            if isinstance(event, BlockStart):
                self._start(event, out)
            elif isinstance(event, Dispatch):
                self._dispatch(event)
            elif isinstance(event, BlockStop):
                self._stop(event, out)
            elif isinstance(event, OutputTokens):
                self._tokens(event, out)
            elif isinstance(event, HostedResults):
                self._results(event, out)
            elif (failure := failure_of(event)) is not None:
                out.append(self.error(failure))
            elif isinstance(event, Finish):
                self._finish(event, out)
        if texts:
            self._delta("".join(texts), tokens, out)
        return b"".join(out)

    @abstractmethod
    def error(self, info: ErrorInfo) -> bytes:
        """See `Renderer.error`."""

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
        """A block begins."""

    def _delta(self, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
        """Text of the open block. `tokens`: see `Delta.logprobs`."""

    def _dispatch(self, event: Dispatch) -> None:
        """The open block is a complete call."""

    def _stop(self, event: BlockStop, out: list[bytes]) -> None:
        """The open block ends."""

    def _tokens(self, event: OutputTokens, out: list[bytes]) -> None:
        """Ids of output tokens."""

    def _results(self, event: HostedResults, out: list[bytes]) -> None:
        """Results of tools that this server ran."""

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        """The turn ends."""

"""The API-independent part of rendering a turn's events as events of an API's stream. Pure.

A renderer makes event Structs. The stream encodes them and a document folds them, so both have the
same content.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar, get_args

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
    Prepared,
    TokenLogprob,
    TurnEvent,
    failure_of,
)
from schemas.token_ids import unpack_ids

E = TypeVar("E")
Plain: TypeAlias = tuple[bytes, bytes]
"""The bytes before and after the text of a delta that changes only by its text."""
_encode = msgspec.json.Encoder().encode


class TurnRenderer(Generic[E]):
    """Renders one turn. A subclass appends its own events to `out`. Events without an overridden
    method are skipped."""

    plain: Plain | None = None
    """Set if the next delta needs no more than encoding its text."""

    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """Renders the next events of the turn. Consecutive deltas are rendered as one."""
        plain = self.plain
        if plain is not None:
            if len(events) == 1 and type(events[0]) is Delta:  # most calls: a token at a time
                text = events[0].text
            else:
                text = only_text(events)
            if text:
                head, tail = plain
                return head + _encode(text) + tail
        return self.encode(self.api_events(events))

    def api_events(self, events: Sequence[TurnEvent]) -> list[E]:
        """The API's events for events of the turn."""
        out: list[E] = []
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
                texts = []
                tokens = []
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
            else:
                self._end(event, out)
        if texts:
            self._delta("".join(texts), tokens, out)
        return out

    def _end(self, event: TurnEvent, out: list[E]) -> None:
        """Renders the last event of a turn."""
        failure = failure_of(event)
        if failure is not None:
            self._fail(failure, out)
        elif isinstance(event, Finish):
            self._finish(event, out)

    @abstractmethod
    def encode(self, events: Sequence[E]) -> bytes:
        """The bytes of events in the stream."""

    def _start(self, event: BlockStart, out: list[E]) -> None:
        """A block begins."""

    def _delta(self, text: str, tokens: list[TokenLogprob], out: list[E]) -> None:
        """Text of the open block. `tokens`: as in `Delta.logprobs`."""

    def _dispatch(self, event: Dispatch) -> None:
        """The open block is a complete call."""

    def _stop(self, event: BlockStop, out: list[E]) -> None:
        """The open block ends."""

    def _tokens(self, event: OutputTokens, out: list[E]) -> None:
        """Ids of output tokens."""

    def _results(self, event: HostedResults, out: list[E]) -> None:
        """Results of tools that this server ran."""

    def _finish(self, event: Finish, out: list[E]) -> None:
        """The turn ends."""

    @abstractmethod
    def _fail(self, info: ErrorInfo, out: list[E]) -> None:
        """The turn fails."""


def event_names(union: Any) -> dict[type, bytes]:
    """The names of the Structs of a union in the stream: their tags."""
    return {kind: str(kind.__struct_config__.tag).encode() for kind in get_args(union)}


def only_text(events: Sequence[TurnEvent]) -> str:
    """The text of events that are all deltas; "" if there are others."""
    if len(events) == 1:  # most calls: a token at a time
        event = events[0]
        return event.text if type(event) is Delta else ""
    texts = [event.text for event in events if type(event) is Delta]
    return "".join(texts) if len(texts) == len(events) else ""


class TokenReport:
    """The token ids of one turn, and log probabilities if requested; empty unless the request asked
    for ids.

    For APIs without fields of their own for these.
    """

    def __init__(self) -> None:
        self._prompt = b""
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []

    def start(self, prepared: Prepared) -> None:
        """Takes the prompt's ids."""
        self._prompt = prepared.prompt_ids

    def add(self, event: OutputTokens) -> None:
        """Takes the next ids of the output."""
        self._ids += event.ids
        if event.logprobs is not None:
            self._logprobs += [None if token is None else token.logprob for token in event.logprobs]

    def prompt(self) -> dict[str, Any]:
        """The answer's member `prompt_token_ids`."""
        return {"prompt_token_ids": unpack_ids(self._prompt)} if self._prompt else {}

    def output(self) -> dict[str, Any]:
        """The answer's members `token_ids` and `token_logprobs`, one entry per token, null where
        the engine reported none."""
        if not self._prompt:
            return {}
        logprobs = {"token_logprobs": self._logprobs} if self._logprobs else {}
        return {"token_ids": self._ids, **logprobs}

"""Puts the engine steps of turns into their token streams, and ends each turn once."""

import asyncio
from collections.abc import Iterator

from schemas.errors import TimedOut, TurnwireError
from schemas.events import FinishReason
from schemas.frames import TokenFinish
from services.worker.engine import EngineDelta, Handle
from services.worker.observer import DecodingObserver, WorkerObserver
from services.worker.output.drain import Drain
from services.worker.output.outbox import Outbox
from services.worker.output.pacing import Pacer
from services.worker.output.prefill_report import PrefillReporter
from services.worker.output.token_stream import TokenStream


class _NoHandle:
    """Takes the place of the engine's handle where there is none."""

    def close(self) -> None:
        """Does nothing."""


_NO_HANDLE = _NoHandle()


class Decoding:
    """The sink of one turn. It ends once: the engine ends it, or it is cancelled."""

    __slots__ = (
        "_add_tokens",
        "_turns",
        "deadline",
        "ended",
        "handle",
        "observer",
        "prefill",
        "stream",
    )

    def __init__(
        self,
        turns: "Decodings",
        stream: TokenStream,
        prefill: PrefillReporter,
        observer: DecodingObserver,
    ) -> None:
        self.stream = stream
        self.prefill = prefill
        self.observer = observer
        self.handle: Handle = _NO_HANDLE
        """The engine's, except after the end, and while another one is being opened."""
        self.deadline: asyncio.TimerHandle | None = None
        self.ended = False
        self._turns = turns
        self._add_tokens = stream.add_tokens

    def __repr__(self) -> str:
        engine = "no engine" if self.handle is _NO_HANDLE else "an engine"
        return f"<with {engine}, {self.stream!r}>"

    @property
    def has_started(self) -> bool:
        """Whether the engine has reported anything. Until then the turn waits for a slot or for its
        prefill."""
        return self.stream.cached is not None or len(self.stream.ids) > self.stream.resumed

    def put(self, delta: EngineDelta) -> None:
        """Adds an engine step's result to the stream."""
        if self.ended:
            return
        if (
            delta.cached is None
            and delta.finish is None
            and delta.logprobs is None
            and delta.weights is None
        ):
            if self._add_tokens(delta.ids):  # as for nearly every step
                self._turns.wake(self)
        else:
            self._put_details(delta)

    def _put_details(self, delta: EngineDelta) -> None:
        """Adds a step with more than tokens."""
        is_due = self.stream.add(delta)
        if delta.cached is not None:
            self.observer.prefilled(delta)
        if delta.finish is not None:
            self._end()
        elif is_due:
            self._turns.wake(self)

    def fail(self, error: TurnwireError) -> None:
        """Ends the stream with the engine's error."""
        if not self.ended:
            self.stream.end(TokenFinish(FinishReason.ERROR, error=error.info))
            self._end()

    def abandon(self, error: TurnwireError) -> None:
        """Stops the decoding and ends the turn with an error. Does nothing after its end."""
        if not self.ended:
            self.close()
            self.fail(error)

    def cancel(self) -> None:
        """Stops the decoding and ends the stream where it is. Does nothing after its end."""
        if not self.ended:
            self.close()
            self.stream.end(TokenFinish(FinishReason.CANCELLED))
            self._end()

    def close(self) -> None:
        """Stops the engine. The turn goes on, where another handle is opened."""
        self.handle.close()
        self.handle = _NO_HANDLE

    def _end(self) -> None:
        self.ended = True
        self.handle = _NO_HANDLE
        self._turns.end(self)


class Decodings:
    """The turns that decode: the newest attempt at each, and an earlier one until its end."""

    def __init__(
        self, outbox: Outbox, pacer: Pacer, drain: Drain, observer: WorkerObserver
    ) -> None:
        self._outbox = outbox
        self._pacer = pacer
        self._drain = drain
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._newest: dict[str, Decoding] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def __iter__(self) -> Iterator[Decoding]:
        return iter(list(self._newest.values()))

    def find(self, turn: str) -> Decoding | None:
        """Returns the newest attempt at a turn, while it decodes."""
        return self._newest.get(turn)

    def add(self, decoding: Decoding, parser: str, timeout_s: float | None) -> None:
        """Adds a turn that the engine has just opened, and sends its parse context: if this worker
        dies in prefill, the shard has the turn's frontend."""
        stream = decoding.stream
        self._newest[stream.turn] = decoding
        if timeout_s is not None:
            decoding.deadline = self._loop.call_later(timeout_s, self._deadline_passed, decoding)
        self._outbox.open(stream, parser)
        self._send(stream)

    def wake(self, decoding: Decoding) -> None:
        """Wakes the shard of a stream with tokens. No other one waits there, or these tokens are
        the turn's first ones."""
        stream = decoding.stream
        if stream.sent > stream.resumed:
            self._pacer.send_soon(stream.parser)
        else:
            decoding.observer.first_tokens()
            self._pacer.send_now(stream.parser)
            decoding.prefill.end(computed=True)

    def end(self, decoding: Decoding) -> None:
        """Sends the end of a turn, and reports it to all who count on it."""
        stream = decoding.stream
        observer = decoding.observer
        if len(stream.ids) > stream.resumed:
            observer.first_tokens()  # the only step had all of it
        self._send(stream)

        computed = observer.has_tokens or not stream.broken_off
        decoding.prefill.end(computed=computed)
        self._outbox.streams.end(stream, self._loop.time())
        self._forget(decoding)
        observer.ended(stream)
        decoding.prefill.record_found(stream.cached)
        if computed:
            decoding.prefill.add_output(stream.output)
        self._drain.turn_ended()

    def _send(self, stream: TokenStream) -> None:
        stream.schedule()
        self._pacer.send_now(stream.parser)

    def _forget(self, decoding: Decoding) -> None:
        if decoding.deadline:
            decoding.deadline.cancel()
        if self._newest.get(decoding.stream.turn) is decoding:
            del self._newest[decoding.stream.turn]

    def _deadline_passed(self, decoding: Decoding) -> None:
        """Ends a turn that still waits for its slot or its prefill. Its frontend cancels one that
        decodes."""
        if not decoding.has_started:
            self._observer.deadline_passed(decoding.stream)
            decoding.abandon(TimedOut("the request's deadline passed before it was decoded"))

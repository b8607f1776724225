"""Puts one turn's engine steps into its token stream."""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.errors import TurnwireError
from schemas.events import FinishReason
from schemas.frames import TokenFinish
from services.worker.engine import Delta, Handle
from services.worker.outbox import TokenStream


@dataclass(slots=True, eq=False)
class Decoding:
    """The sink of one turn. It ends once: the engine ends it, or it is cancelled."""

    stream: TokenStream
    schedule: Callable[[TokenStream], bool]
    """Notes that the stream has something to send. Returns whether it is the first of its shard."""
    on_step: Callable[[TokenStream], None]
    """Called for the first stream of a shard with something to send, and for a stream's first
    tokens."""
    on_end: "Callable[[Decoding], None]"
    """Called once, when the end is to be sent."""
    ended: bool = False
    handle: Handle | None = None
    on_cached: Callable[[Delta], None] | None = None
    """Called with the engine's first delta, which has `cached`: the prefill ended in its step."""

    def put(self, delta: Delta) -> None:
        """Adds an engine step's result to the stream."""
        if self.ended:
            return
        stream = self.stream
        if (
            delta.cached is None
            and delta.finish is None
            and delta.logprobs is None
            and stream.logprobs is None
        ):
            stream.ids += delta.ids  # all that `add` does for nearly every step
        else:
            stream.add(delta)
            if delta.cached is not None and self.on_cached is not None:
                self.on_cached(delta)
            if delta.finish is not None:
                self._end()
                return
        schedule = (
            self.schedule
        )  # Python 3.11 specializes this load, and not that of a method call on a slot
        if schedule(stream) or stream.sent <= stream.resumed:
            self.on_step(stream)

    def fail(self, error: TurnwireError) -> None:
        """Ends the stream with the engine's error."""
        if not self.ended:
            self.stream.finish = TokenFinish(FinishReason.ERROR, error=error.info)
            self._end()

    def abandon(self, error: TurnwireError) -> None:
        """Stops the decoding and ends the turn with an error. Does nothing after its end."""
        if not self.ended:
            self._close()
            self.fail(error)

    def cancel(self) -> None:
        """Stops the decoding and ends the stream where it is. Does nothing after its end."""
        if not self.ended:
            self._close()
            self.stream.finish = TokenFinish(FinishReason.CANCELLED)
            self._end()

    def _close(self) -> None:
        if self.handle is not None:
            self.handle.close()

    def _end(self) -> None:
        self.ended = True
        self.handle = None
        self.on_end(self)


@dataclass(slots=True)
class Prefill:
    """The sink of a prefill, which discards the engine's results."""

    fail: Callable[[TurnwireError], None]
    """Takes the error of a prefill that fails."""

    def put(self, delta: Delta) -> None:
        """Discards a result."""

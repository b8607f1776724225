"""One turn between the engine and the outbox: what the engine says goes into the turn's token stream."""

from collections.abc import Callable, Sequence

import msgspec

from schemas.errors import ENGINE_DIED, TurnwireError
from schemas.events import FinishReason
from schemas.frames import TokenFinish
from services.worker.engine import Delta, EngineDied, Handle
from services.worker.stepper import TokenStream


class Decoding:
    """The sink of one turn. It ends once: by the engine's word, or because it was cancelled."""

    __slots__ = ("_mark", "_on_end", "_on_step", "block_keys", "ended", "handle", "rest", "salt", "stream")

    def __init__(
        self,
        stream: TokenStream,
        *,
        mark: Callable[[TokenStream], bool],
        on_step: Callable[[TokenStream], None],
        on_end: "Callable[[Decoding], None]",
    ) -> None:
        """
        Args:
            mark: notes that the stream has something to send; True where it is the first of its shard.
            on_step: it is the first of its shard that has, or has something to say for the first time.
            on_end: nothing more will come; the end is to be sent.
        """
        self.stream = stream
        self.ended = False
        self.handle: Handle | None = None
        self.block_keys: Sequence[int] | None = None
        """The keys of the prompt's whole blocks, for the book of the KV cache."""
        self.rest: Sequence[int] = ()
        """The prompt's tokens behind them."""
        self.salt: str | None = None
        self._mark = mark
        self._on_step = on_step
        self._on_end = on_end

    def put(self, delta: Delta) -> None:
        """See `Sink.put`."""
        if self.ended:
            return
        stream = self.stream
        if delta.cached is None and delta.finish is None and delta.logprobs is None and stream.logprobs is None:
            stream.ids += delta.ids  # `add`, without what nearly no step has
        else:
            stream.add(delta)
            if delta.finish is not None:
                self._end()
                return
        if self._mark(stream) or stream.sent <= 0:
            self._on_step(stream)

    def fail(self, error: TurnwireError) -> None:
        """See `Sink.fail`."""
        if not self.ended:
            info = error.info
            if isinstance(error, EngineDied):
                info = msgspec.structs.replace(info, code=ENGINE_DIED)
            self.stream.finish = TokenFinish(FinishReason.ERROR, error=info)
            self._end()

    def abandon(self, error: TurnwireError) -> None:
        """Stops the decoding; the turn ends with an error. Does nothing where it has ended."""
        if not self.ended:
            if self.handle is not None:
                self.handle.close()
            self.fail(error)

    def cancel(self) -> None:
        """Stops the decoding; the stream ends where it is. Does nothing where it has ended."""
        if not self.ended:
            if self.handle is not None:
                self.handle.close()
            self.stream.finish = TokenFinish(FinishReason.CANCELLED)
            self._end()

    def _end(self) -> None:
        self.ended = True
        self.handle = None
        self._on_end(self)

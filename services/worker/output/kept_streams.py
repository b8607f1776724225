"""Keeps the token streams of a worker's turns: while they are decoded, and for a while after, so
that another shard can take over from one that died. Pure."""

from collections import OrderedDict
from collections.abc import Iterator

from services.worker.output.token_stream import StreamKey, TokenStream

UNDELIVERED = 2
"""Factor by which a stream that did not arrive lingers longer than others."""


class KeptStreams:
    """The streams of turns that decode, and of those that have ended and linger."""

    def __init__(self, linger_s: float, most_lingering: int = 4096) -> None:
        self._linger_s = linger_s
        self._most_lingering = most_lingering
        self._live: dict[StreamKey, TokenStream] = {}
        self._lingering: OrderedDict[StreamKey, TokenStream] = OrderedDict()
        """The oldest first."""
        self._since: dict[StreamKey, float] = {}
        """When the lingering ones ended."""

    def __iter__(self) -> Iterator[TokenStream]:
        yield from self._live.values()
        yield from self._lingering.values()

    @property
    def busy(self) -> bool:
        """Whether any turn decodes."""
        return bool(self._live)

    def find(self, turn: str, attempt: int) -> TokenStream | None:
        """The stream of an attempt, decoding or ended."""
        key = (turn, attempt)
        return self._live.get(key) or self._lingering.get(key)

    def ended(self) -> list[TokenStream]:
        """The streams that linger."""
        return list(self._lingering.values())

    def add(self, stream: TokenStream) -> None:
        """Adds the stream of a turn that decodes."""
        self._live[stream.key] = stream

    def end(self, stream: TokenStream, now: float) -> None:
        """Lets a stream linger after its decoding has ended; unsent tokens are still sent."""
        del self._live[stream.key]
        self._lingering[stream.key] = stream
        self._since[stream.key] = now
        if len(self._lingering) > self._most_lingering:
            self.drop(next(iter(self._lingering.values())))

    def drop(self, stream: TokenStream) -> None:
        """Drops a stream that lingers. Its shard gets an end, if it lacks that of the turn."""
        del self._lingering[stream.key]
        del self._since[stream.key]
        stream.queue.waiting.pop(stream, None)
        if not stream.delivered:
            stream.queue.end_gone(stream.key, max(stream.sent, 0))

    def expire(self, now: float) -> None:
        """Drops streams that have lingered long enough; undelivered ones linger longer."""
        overdue = [
            stream
            for key, stream in self._lingering.items()
            if now - self._since[key] >= self._limit_s(stream)
        ]
        for stream in overdue:
            self.drop(stream)

    def linger_again(self, now: float) -> None:
        """Lets all streams linger as if they ended now, because nothing could be sent while this
        process was cut off from the bus."""
        # rare: a worker was cut off and is no longer
        self._since = dict.fromkeys(self._since, now)

    def _limit_s(self, stream: TokenStream) -> float:
        return self._linger_s if stream.delivered else self._linger_s * UNDELIVERED

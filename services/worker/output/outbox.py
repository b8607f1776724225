"""The worker's outbox, which makes one frame per shard and tick of the tokens that its streams have
to send. A shard can have any of it again, as long as the streams are kept (`kept_streams.py`)."""

from array import array
from collections.abc import Container, Sequence

import msgspec

from schemas.control import Replay
from schemas.errors import ErrorInfo, ErrorKind
from schemas.frames import TokenEntry, TokenFrame
from services.worker.output.kept_streams import KeptStreams
from services.worker.output.token_stream import TOKEN_BYTES, ShardQueue, TokenStream

UNSENDABLE = ErrorInfo(ErrorKind.ENGINE, "the engine returned something that is not a token id")


class Outbox:
    """The token streams of one worker, and the queues of its shards.

    It makes no calls: the streams that could not be sent are collected in `broken`.
    """

    def __init__(self, worker: str, *, frame_bytes: int, linger_s: float) -> None:
        self._worker = worker
        self._frame_bytes = frame_bytes
        self.streams = KeptStreams(linger_s)
        self._queues: dict[str, ShardQueue] = {}
        self.broken: list[TokenStream] = []
        """Streams that were broken off, until the caller takes them out."""

    # -- streams

    def open(self, stream: TokenStream, parser: str) -> None:
        """Adds the stream of an attempt, for this shard. An earlier attempt continues to its end,
        which its shard must receive."""
        stream.move(self._queue(parser))
        self.streams.add(stream)

    # -- frames

    def fill(self, parser: str, seq: int, now: float = 0.0) -> TokenFrame | None:
        """Returns the next frame for a shard: all that its streams have to send, up to the frame
        limit. `now`: as `TokenFrame.time`."""
        queue = self._queues.get(parser)
        if queue is None:
            return None
        if not queue.waiting:
            if not queue.gone:
                return None
            return TokenFrame(self._worker, seq, queue.take_gone(), now)

        frame = TokenFrame(self._worker, seq, time=now)
        try:
            ids = self._collect(queue, seq, frame.entries)
        except Exception:
            self.take_back(parser, frame)
            raise
        if not _are_token_ids(ids) and self.take_back(parser, frame):
            return self.fill(parser, seq, now)  # the same, with the ends of the turns to blame
        return frame if frame.entries else None

    def _collect(self, queue: ShardQueue, seq: int, entries: list[TokenEntry]) -> list[int]:
        """Takes what the streams have to send. Returns all ids in it."""
        ids: list[int] = []
        room = self._frame_bytes
        waiting = queue.waiting
        for stream in list(waiting):
            tokens = stream.next_tokens(room)
            if tokens is not None:
                entries.append(tokens)
                fresh = tokens.ids
                ids += fresh
                room -= len(fresh) * TOKEN_BYTES
                del waiting[stream]
                continue

            if not stream.pending:  # scheduled twice in one tick
                del waiting[stream]
                continue
            if entries and stream.least_bytes > room:
                break

            at = max(stream.sent, 0)
            try:
                entry, room = stream.next_entry(seq, room)
            except Exception:
                self._break_off(stream, at)
                raise
            entries.append(entry)
            ids += entry.ids
            if not stream.pending:
                del waiting[stream]
        return ids

    def take_back(self, parser: str, frame: msgspec.Struct) -> bool:
        """Takes back a frame that was not sent: its streams are sent again from where it began.

        A stream ends there if its entry cannot be sent, because the engine's ids are not those of
        tokens or its log probabilities not numbers. Returns whether any did.
        """
        assert isinstance(frame, TokenFrame)
        blamed = False
        for entry in frame.entries:
            stream = self.streams.find(entry.turn, entry.attempt)
            if stream is None or stream.parser != parser:
                continue
            if _can_be_sent(entry):
                stream.rewind(entry.at)
            else:
                blamed = True
                self._break_off(stream, entry.at)
            stream.schedule()
        return blamed

    def _break_off(self, stream: TokenStream, at: int) -> None:
        stream.break_off(at, UNSENDABLE)
        self.broken.append(stream)

    # -- shards

    def _queue(self, parser: str) -> ShardQueue:
        queue = self._queues.get(parser)
        if queue is None:
            queue = self._queues[parser] = ShardQueue(parser)
        return queue

    def credited(self, parser: str, seq: int) -> None:
        """Notes that a shard has everything up to frame `seq`."""
        queue = self._queue(parser)
        queue.credited = max(seq, queue.credited)

    def replay(self, request: Replay) -> None:
        """Rewinds the streams that the shard names; with `all` also every other one that it may not
        have to its end.

        Streams that no longer exist are ended.
        """
        positions = {(position.turn, position.attempt): position for position in request.streams}
        for key, position in positions.items():
            if self.streams.find(*key) is None:
                self._queue(request.receiver).end_gone(key, position.offset)

        for stream in list(self.streams):
            if stream.parser != request.receiver:
                continue
            if stream.key in positions:
                stream.rewind(positions[stream.key].offset)
            elif request.all and stream.sent >= 0 and not stream.delivered:
                stream.rewind(0)
            else:
                continue
            stream.schedule()

    def confirm(self, parser: str, frontends: Container[str]) -> None:
        """Drops the finished streams of a shard that left without open turns: these frontends have
        them."""
        for stream in self.streams.ended():
            if stream.parser == parser and stream.frontend in frontends and stream.delivered:
                self.streams.drop(stream)

    def move(self, gone: str, to: str) -> int:
        """Moves the streams of a shard that is gone to another one, which gets them from the start.
        Returns how many."""
        self._queues.pop(gone, None)
        successor = self._queue(to)
        moved = [stream for stream in self.streams if stream.parser == gone]
        for stream in moved:
            # rare: a turn moves to another parser
            stream.move(successor)
            stream.schedule()
        return len(moved)


def _are_token_ids(ids: Sequence[int]) -> bool:
    """Whether ids are integers of 32 bits, as the parser keeps them."""
    try:
        array("I", ids)
    except (OverflowError, TypeError):
        return False
    return True


def _can_be_sent(entry: TokenEntry) -> bool:
    if not _are_token_ids(entry.ids):
        return False
    try:
        msgspec.json.encode(entry)
    except Exception:  # any kind: msgspec calls methods of the objects
        return False
    return True

"""Sends the tokens of the turns that decode to their parser shards, and follows these processes and
the frontends of the turns."""

import asyncio
import time

import msgspec
from typing_extensions import override

from schemas.control import Heartbeat, Replay
from schemas.errors import EngineFailed
from schemas.frames import TokenFrame
from services.runtime.presence.heartbeats import LinkStates
from services.runtime.process import Process
from services.runtime.streams.frames import FRAME_BYTES, FrameSender, FrameSource
from services.runtime.streams.frontend_watch import FrontendWatch
from services.worker.observer import WorkerObserver
from services.worker.output.decoding import Decoding, Decodings
from services.worker.output.drain import Drain
from services.worker.output.outbox import UNSENDABLE, Outbox
from services.worker.output.pacing import Pacer
from services.worker.output.shards import ParserShards
from services.worker.output.token_stream import TokenStream

LINGER_S = 15.0
"""How long a finished turn can still be sent to another shard, in addition to `recovery_s`: several
times as long as the detection of a death."""
FRAME_GAP_S = 0.001
"""Time between two frames of ordinary steps to a shard: a fraction of a large model's step."""


class TokenOutput(FrameSource):
    """The way of all tokens of one worker: from the turns through the outbox to the shards."""

    def __init__(self, process: Process, model: str, observer: WorkerObserver) -> None:
        self._process = process
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        linger_s = process.config.bus.recovery_s + LINGER_S
        self._outbox = Outbox(process.id, frame_bytes=FRAME_BYTES, linger_s=linger_s)
        self._sender = FrameSender(process, "parser", self)
        pacer = Pacer(FRAME_GAP_S, self._sender, self._loop)
        self._shards = ParserShards(process, model, self._outbox, self._sender, pacer)
        self._drain = Drain(process, self._outbox.streams)
        self.turns = Decodings(self._outbox, pacer, self._drain, observer)
        """The turns that decode."""
        process.registry.on_leave.append(self._peer_left)
        self._frontend_watch = FrontendWatch(process, self._frontend_gone)
        process.on_tick.append(self._expire)
        process.on_attached.append(self._attached)

    # -- for the worker

    async def start(self) -> None:
        """Subscribes to what the shards send back."""
        await self._sender.start()

    def add(self, decoding: Decoding, requested: str, timeout_s: float | None) -> None:
        """Adds a turn that the engine has just opened, for the requested shard, or another one if
        that is gone."""
        self.turns.add(decoding, self._shards.choose(requested), timeout_s)

    def find_stream(self, turn: str, attempt: int) -> TokenStream | None:
        """Returns the stream of an attempt, decoding or ended."""
        return self._outbox.streams.find(turn, attempt)

    def links(self) -> LinkStates:
        """Returns the links to the shards."""
        return self._sender.links()

    def add_request(self, request: "asyncio.Task[None]") -> None:
        """Lets `drain` wait for the answer to a request, too, and keeps its task alive."""
        self._drain.add_request(request)

    async def drain(self) -> None:
        """Returns when every turn has ended and its shard has all of its tokens."""
        await self._drain.wait()

    # -- frames

    @override
    def fill(self, receiver: str, seq: int) -> TokenFrame | None:
        """The next frame for a shard. Called by `FrameSender` at the end of a tick."""
        try:
            return self._outbox.fill(receiver, seq, time.time())
        finally:
            if self._outbox.broken:
                self._abandon_broken()

    @override
    def take_back(self, receiver: str, frame: msgspec.Struct) -> bool:
        blamed = self._outbox.take_back(receiver, frame)
        self._abandon_broken()
        return blamed

    @override
    def replay(self, request: Replay) -> None:
        self._outbox.replay(request)

    @override
    def credited(self, receiver: str, seq: int) -> None:
        self._outbox.credited(receiver, seq)
        self._drain.check()

    def _abandon_broken(self) -> None:
        """Ends the turns with streams that the outbox has broken off."""
        for stream in self._outbox.broken:
            self._observer.unsendable(stream)
            decoding = self.turns.find(stream.turn)
            if decoding is not None and decoding.stream is stream:
                # After the frame that is being sent: the end of the turn is one more thing to send.
                self._loop.call_soon(decoding.abandon, EngineFailed(UNSENDABLE.message))
        self._outbox.broken.clear()

    # -- other processes, and time

    def _peer_left(self, heartbeat: Heartbeat) -> None:
        if heartbeat.stage == "parser":
            self._shards.left(heartbeat)
            self._drain.check()

    def _frontend_gone(self, frontend: str) -> None:
        for decoding in self.turns:
            if decoding.stream.frontend == frontend:
                self._observer.frontend_gone(decoding.stream)
                decoding.cancel()
        self._drain.check()

    def _attached(self) -> None:
        self._outbox.streams.linger_again(self._loop.time())

    def _expire(self, now: float) -> None:
        if not self._process.cut_off:
            self._outbox.streams.expire(now)

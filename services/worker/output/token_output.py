"""Sends the tokens of the turns that decode to their parser shards, and follows these processes and
the frontends of the turns."""

import asyncio

import msgspec
from typing_extensions import override

from schemas.control import Heartbeat, Replay
from schemas.errors import EngineFailed
from schemas.frames import TokenFrame
from services.runtime.process import Process
from services.runtime.streams.frames import FRAME_BYTES, FrameSender, FrameSource
from services.runtime.streams.frontend_watch import FrontendWatch
from services.worker.observer import WorkerObserver
from services.worker.output.decoding import Decodings
from services.worker.output.drain import Drain
from services.worker.output.outbox import UNSENDABLE, Outbox
from services.worker.output.pacing import Pacer
from services.worker.output.shards import ParserShards

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
        self.outbox = Outbox(process.id, frame_bytes=FRAME_BYTES, linger_s=linger_s)
        self.sender = FrameSender(process, "parser", self)
        pacer = Pacer(FRAME_GAP_S, self.sender, self._loop)
        self.shards = ParserShards(process, model, self.outbox, self.sender, pacer)
        self.drain = Drain(process, self.outbox)
        self.turns = Decodings(self.outbox, pacer, self.drain, observer)
        process.registry.on_leave(self._peer_left)
        FrontendWatch(process, self._frontend_gone)
        process.on_tick.append(self._expire)
        process.on_attached.append(self._attached)

    # -- frames
    # ----------------------------------------------------------------------------------------------

    @override
    def fill(self, receiver: str, seq: int) -> TokenFrame | None:
        try:
            return self.outbox.fill(receiver, seq)
        finally:
            self._abandon_broken()

    @override
    def take_back(self, receiver: str, frame: msgspec.Struct) -> bool:
        blamed = self.outbox.take_back(receiver, frame)
        self._abandon_broken()
        return blamed

    @override
    def replay(self, request: Replay) -> None:
        self.outbox.replay(request)

    @override
    def credited(self, receiver: str, seq: int) -> None:
        self.outbox.credited(receiver, seq)
        self.drain.check()

    def _abandon_broken(self) -> None:
        """Ends the turns with streams that the outbox has broken off."""
        for stream in self.outbox.take_broken():
            self._observer.unsendable(stream)
            decoding = self.turns.find(stream.turn)
            if decoding is not None and decoding.stream is stream:
                # Not within the drain that calls this: the turn's end is one more thing to send.
                self._loop.call_soon(decoding.abandon, EngineFailed(UNSENDABLE.message))

    # -- other processes, and time
    # ----------------------------------------------------------------------------------------------

    def _peer_left(self, heartbeat: Heartbeat) -> None:
        if heartbeat.stage == "parser":
            self.shards.left(heartbeat)
            self.drain.check()

    def _frontend_gone(self, frontend: str) -> None:
        for decoding in self.turns:
            if decoding.stream.frontend == frontend:
                self._observer.frontend_gone(decoding.stream)
                decoding.cancel()
        self.drain.check()

    def _attached(self) -> None:
        self.outbox.attached(self._loop.time())

    def _expire(self, now: float) -> None:
        if not self._process.cut_off:
            self.outbox.expire(now)

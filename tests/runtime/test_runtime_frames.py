"""A hop of frames over a real nats-server: credit holds the sender. `simulation` tests loss."""

import asyncio

import msgspec
import pytest

from schemas import subjects
from schemas.control import Replay, StreamPosition
from schemas.frames import TokenEntry, TokenFrame
from services.runtime.bus import Delivery
from services.runtime.heartbeats import LinkStates, Service
from services.runtime.process import Process
from services.runtime.streams.frames import FrameReceiver, FrameSender, FrameSource
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually


class Source(Service, FrameSource):
    """Streams of counted tokens, sent through a `FrameSender`."""

    def __init__(self, process: Process, receiver: str, tokens_per_frame: int = 10**9) -> None:
        self.ids: dict[str, list[int]] = {f"t{n}": [] for n in range(8)}
        self.at = dict.fromkeys(self.ids, 0)
        self.receiver = receiver
        self.limit = tokens_per_frame
        self.process = process
        self.sender = FrameSender(process, "parser", self)
        process.serve(self)

    def links(self) -> LinkStates:
        return self.sender.links()

    def add(self) -> None:
        for ids in self.ids.values():
            ids.append(len(ids))
        self.sender.schedule(self.receiver)

    def fill(self, receiver: str, seq: int) -> TokenFrame | None:
        entries = []
        for turn, ids in self.ids.items():
            at = self.at[turn]
            end = min(len(ids), at + self.limit)
            if at < end:
                entries.append(TokenEntry(turn, 1, at, ids[at:end]))
                self.at[turn] = end
        return TokenFrame(self.process.id, seq, entries) if entries else None

    def credited(self, receiver: str, seq: int) -> None:
        """Keeps all streams."""

    def replay(self, request: Replay) -> None:
        pytest.fail(f"nothing is lost: {request}")


class Sink:
    """Puts the streams together again. Handles no frames while it is `stuck`."""

    def __init__(self, process: Process, *, stuck: bool = False) -> None:
        self.ids: dict[str, list[int]] = {}
        self.process = process
        self.stuck = stuck
        self.held: list[Delivery] = []
        self.receiver = FrameReceiver(process, "worker", self.positions, on_given_up=pytest.fail)

    async def start(self) -> None:
        await self.process.subscribe(subjects.tokens(self.process.id), self.frame)

    def positions(self, _sender: str) -> list[StreamPosition]:
        return [StreamPosition(turn, 1, len(ids)) for turn, ids in self.ids.items()]

    def frame(self, delivery: Delivery) -> None:
        if self.stuck:
            self.held.append(delivery)
            return
        frame = msgspec.json.decode(delivery.data, type=TokenFrame)
        assert self.receiver.opens(frame.sender, frame.seq)
        for entry in frame.entries:
            ids = self.ids.setdefault(entry.turn, [])
            assert entry.at == len(ids)
            ids += entry.ids
        self.receiver.arrived(frame.sender, frame.seq, len(delivery.data))

    def held_bytes(self) -> list[int]:
        return [len(delivery.data) for delivery in self.held]

    def release(self) -> None:
        self.stuck = False
        for delivery in self.held:
            self.frame(delivery)


async def test_a_receiver_that_stands_still_holds_the_sender_and_not_the_memory(
    make_process: MakeProcess,
) -> None:
    """The engine outruns its parser: frames under way stay within the window, tokens pile up in the
    streams alone."""
    worker = await make_process("worker", "w")
    parser = await make_process("parser", "p", window_bytes=4096)
    source, sink = Source(worker, parser.id, tokens_per_frame=20), Sink(parser, stuck=True)
    await source.sender.start()
    await sink.start()
    parser.heartbeats.send()
    await eventually(lambda: worker.registry.get("parser", parser.id) is not None)
    for number in range(400):
        source.add()
        if number % 10 == 0:
            await asyncio.sleep(0)
    await worker.bus.flush()
    await eventually(lambda: sum(sink.held_bytes()) >= 4096)
    assert sum(sink.held_bytes()[:-1]) < 4096, "only the last frame may overshoot"
    sink.release()
    await eventually(lambda: sink.ids == source.ids)
    assert sink.receiver.gaps == 0

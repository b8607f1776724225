"""A hop of frames over a real nats-server: credit holds, and loss, repeats and reordering change
nothing."""

import asyncio
import random

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

TURNS = 8
TOKENS = 400


class Source(Service, FrameSource):
    """Streams of counted tokens, sent through a `FrameSender`."""

    def __init__(self, process: Process, receiver: str, tokens_per_frame: int = 10**9) -> None:
        self.ids: dict[str, list[int]] = {f"t{n}": [] for n in range(TURNS)}
        self.at = dict.fromkeys(self.ids, 0)
        self.receiver = receiver
        self.limit = tokens_per_frame
        self.process = process
        self.sender = FrameSender(process, "parser", self)
        process.serve(self)

    def links(self) -> LinkStates:
        return self.sender.links()

    def add(self) -> None:
        for turn, ids in self.ids.items():
            ids.append(len(ids))
            assert turn
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
        named = {s.turn: s.offset for s in request.streams}
        for turn in self.ids:
            if turn in named or request.all:
                self.at[turn] = min(self.at[turn], named.get(turn, 0))


class Sink:
    """Puts the streams together again."""

    def __init__(self, process: Process) -> None:
        self.ids: dict[str, list[int]] = {}
        self.process = process
        self.given_up: list[str] = []
        self.receiver = FrameReceiver(
            process, "worker", self.positions, on_given_up=self.given_up.append
        )
        self.frames = 0

    async def start(self) -> None:
        await self.process.subscribe(subjects.tokens(self.process.id), self.frame)

    def positions(self, _sender: str) -> list[StreamPosition]:
        return [StreamPosition(turn, 1, len(ids)) for turn, ids in self.ids.items()]

    def frame(self, delivery: Delivery) -> None:
        frame = msgspec.json.decode(delivery.data, type=TokenFrame)
        if not self.receiver.opens(frame.sender, frame.seq):
            return
        self.frames += 1
        for entry in frame.entries:
            ids = self.ids.setdefault(entry.turn, [])
            if entry.at > len(ids):
                self.receiver.gap(frame.sender, StreamPosition(entry.turn, 1, len(ids)))
                continue
            ids += entry.ids[len(ids) - entry.at :]
        self.receiver.arrived(frame.sender, frame.seq, len(delivery.data))

    def whole(self, source: Source) -> bool:
        return self.ids == source.ids


class StuckSink:
    """Handles neither frames nor heartbeats until it is released."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.held: list[Delivery] = []
        self.handle = self.held.append

    async def start(self) -> None:
        await self.process.subscribe(
            subjects.tokens(self.process.id), lambda delivery: self.handle(delivery)
        )

    def held_bytes(self, *, last: bool = True) -> int:
        """The size of the frames that came, with or without the last one."""
        return sum(len(delivery.data) for delivery in (self.held if last else self.held[:-1]))

    def release(self) -> Sink:
        sink = Sink(self.process)
        for delivery in self.held:
            sink.frame(delivery)
        self.handle = sink.frame
        return sink


def harm(process: Process, seed: int) -> None:
    """From now on this process's frames get lost, doubled and swapped on the way."""
    publish, chance, kept = process.bus.publish, random.Random(seed), []

    def faulty(subject: str, data: bytes, *, reply_to: str = "") -> bool:
        if not subject.startswith("tw.v2.tok."):
            return publish(subject, data, reply_to=reply_to)
        roll = chance.random()
        if roll < 0.2:
            return True
        if roll < 0.35:
            kept.append(data)
            return True
        for piece in [data] * chance.choice((1, 1, 2)) + kept:
            publish(subject, piece, reply_to=reply_to)
        kept.clear()
        return True

    process.bus.publish = faulty  # type: ignore[method-assign]


async def beat(*processes: Process) -> None:
    for process in processes:
        process.heartbeats.send()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(6))
async def test_loss_repeats_and_reordering_change_nothing(
    make_process: MakeProcess, seed: int
) -> None:
    worker, parser = await make_process("worker", "w"), await make_process("parser", "p")
    source, sink = Source(worker, parser.id), Sink(parser)
    await source.sender.start()
    await sink.start()
    harm(worker, seed)
    for _ in range(TOKENS):
        source.add()
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while not sink.whole(source):
            await beat(worker, parser)
    assert source.sender.replays > 0


async def test_a_receiver_that_stands_still_holds_the_sender_and_not_the_memory(
    make_process: MakeProcess,
) -> None:
    """The engine outruns its parser: frames under way stay within the window, tokens pile up in the
    streams alone."""
    worker = await make_process("worker", "w")
    parser = await make_process("parser", "p", window_bytes=4096)
    source, stuck = Source(worker, parser.id, tokens_per_frame=20), StuckSink(parser)
    await source.sender.start()
    await stuck.start()
    parser.heartbeats.send()
    await eventually(lambda: worker.registry.get("parser", parser.id) is not None)
    for _ in range(TOKENS * 4):
        source.add()
        if _ % 10 == 0:
            await asyncio.sleep(0)
    await worker.bus.flush()
    await eventually(lambda: stuck.held_bytes() >= 4096)
    assert stuck.held_bytes(last=False) < 4096, "only the last frame may overshoot"
    sink = stuck.release()
    async with asyncio.timeout(60):
        while not sink.whole(source):
            await beat(worker, parser)
    assert sink.receiver.gaps == 0


async def test_a_frame_that_cannot_be_encoded_is_taken_back(make_process: MakeProcess) -> None:
    worker, parser = await make_process("worker", "w"), await make_process("parser", "p")
    taken: list[str] = []

    class RepairedSource(Source):
        def take_back(self, receiver: str, frame: msgspec.Struct) -> bool:
            assert isinstance(frame, TokenFrame)
            taken.append(receiver)
            self.at = dict.fromkeys(self.ids, 0)
            del self.ids["t3"]
            return True

    source, sink = RepairedSource(worker, parser.id), Sink(parser)
    source.ids["t3"].append(object())  # type: ignore[arg-type]
    await sink.start()
    await source.sender.start()
    await sink.process.bus.flush()
    source.add()
    await eventually(lambda: sink.whole(source))
    assert taken == [parser.id]
    assert sink.receiver.gaps == 0

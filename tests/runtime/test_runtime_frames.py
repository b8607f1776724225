"""A hop of frames over a real nats-server: credit holds the sender. `simulation` tests loss."""

import msgspec
import pytest

from schemas import subjects
from schemas.control import Replay
from schemas.frames import TokenEntry, TokenFrame
from services.runtime.nats.bus import Delivery
from services.runtime.streams.frames import FrameReceiver, FrameSender, FrameSource
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually


class Source(FrameSource):
    """100 frames of tokens."""

    left = 100

    def fill(self, receiver: str, seq: int) -> TokenFrame | None:
        if not self.left:
            return None
        self.left -= 1
        return TokenFrame("w", seq, [TokenEntry("t", 1, 0, list(range(20)))])

    def credited(self, receiver: str, seq: int) -> None:
        """Keeps everything."""

    def replay(self, request: Replay) -> None:
        pytest.fail(f"nothing is lost: {request}")


async def test_a_receiver_that_stands_still_holds_the_sender(make_process: MakeProcess) -> None:
    worker = await make_process("worker", "w")
    parser = await make_process("parser", "p", window_bytes=1024)
    source, held = Source(), list[Delivery]()
    sender = FrameSender(worker, "parser", source)
    receiver = FrameReceiver(parser, "worker", lambda _: [], on_given_up=pytest.fail)
    await sender.start()
    await parser.subscribe(subjects.tokens(parser.id), held.append)
    parser.heartbeats.send()
    await eventually(lambda: worker.registry.get("parser", parser.id) is not None)
    sender.schedule(parser.id)

    def sizes() -> list[int]:
        return [len(delivery.data) for delivery in held]

    await eventually(lambda: sum(sizes()) >= 1024)
    await worker.bus.flush()
    await parser.bus.flush()
    assert sum(sizes()[:-1]) < 1024, "only the last frame may overshoot"
    for at in range(100):
        await eventually(lambda at=at: len(held) > at)  # type: ignore[misc]
        frame = msgspec.json.decode(held[at].data, type=TokenFrame)
        assert receiver.opens(worker.id, frame.seq)
        receiver.arrived(worker.id, frame.seq, len(held[at].data))
    assert (source.left, receiver.gaps) == (0, 0)

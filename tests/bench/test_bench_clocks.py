"""The far end of the dispatch lag: marks in a file, tokens on a real bus."""

from pathlib import Path

import msgspec
import nats as nats_client

from bench.apis import APIS
from bench.clocks import Marks, Tap
from schemas import subjects
from schemas.frames import TokenEntry, TokenFrame
from tests.kit.nats import NatsServer
from tests.kit.waiting import eventually


def test_marks(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    path.write_text("a open 1\na body 7\na close 20\nb close 30\na close 25\na clo")
    clock = Marks(path)
    assert [clock.left_at("close", play_id, "") for play_id in "abc"] == [25, 30, None]
    assert clock.left_at("body", "a", "") == 7


async def test_tap_finds_the_closer_across_frames_and_repeats(nats: NatsServer) -> None:
    async with Tap(nats.url, [7, 8]) as tap:
        bus = await nats_client.connect(nats.url)

        async def publish(at: int, ids: list[int], turn: str = "t1") -> None:
            frame = TokenFrame("w", 1, [TokenEntry(turn, 1, at, ids)])
            await bus.publish(subjects.tokens("p-1"), msgspec.json.encode(frame))
            await bus.flush()

        await publish(0, [1, 7])
        await eventually(lambda: tap.heard("t1") == 2)
        assert tap.left_at("close", "", "t1") is None
        await publish(0, [1, 7])  # a replay brings nothing new
        await publish(2, [8, 9])
        await eventually(lambda: tap.heard("t1") == 4)
        first = tap.left_at("close", "", "t1")
        await publish(1, [7, 8, 9, 7, 8])
        await eventually(lambda: tap.heard("t1") == 6)
        assert first is not None
        assert tap.left_at("close", "", "t1") == first
        assert tap.left_at("close", "", "t2") is None
        await bus.close()


def test_when_a_call_is_done() -> None:
    start = b'event: content_block_start\ndata: {"index":%d,"content_block":{"type":"%s"}}'
    stop = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}'
    api = APIS["messages"]
    events = [
        (1, start % (0, b"text")),
        (2, stop % 0),
        (3, start % (1, b"tool_use")),
        (4, stop % 1),
        (5, start % (2, b"tool_use")),
        (6, stop % 2),
    ]
    assert api.call_done(events) == 4
    assert api.call_done(events[:3]) is None
    assert api.call_done([*events[:2], (9, stop % 1)]) is None

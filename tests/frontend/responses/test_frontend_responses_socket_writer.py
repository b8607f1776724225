"""The queue of a WebSocket whose client does not read."""

import asyncio
from typing import Any

from services.frontend.apis.responses.state.socket_writer import SocketWriter
from services.runtime.config import FrontendConfig


class Unread:
    """A connection on which the first frame is never taken, until `read` is set."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.read = asyncio.Event()
        self.closed = False

    async def send_frame(self, frame: bytes, _type: object) -> None:
        await self.read.wait()
        self.sent.append(frame)

    async def close(self) -> None:
        self.closed = True


async def test_frames_count_together_and_none_is_sent_to_a_client_that_was_given_up() -> None:
    connection: Any = Unread()
    slow: list[str] = []
    config = FrontendConfig(max_buffered_bytes=100)
    writer = SocketWriter(connection, config, lambda: slow.append("slow"))
    sending = asyncio.create_task(writer.run())
    writer.send(b"first")
    await asyncio.sleep(0)  # it waits for the client now, and does not count any more
    for frame in (b"a" * 40, b"b" * 40, b"c" * 20):
        writer.send(frame)
    assert slow == []
    writer.send(b"d")
    assert slow == ["slow"]
    writer.send(b"too late")
    connection.read.set()
    await sending
    assert connection.sent == [b"first"]
    assert connection.closed


async def test_queued_frames_are_sent_before_the_end() -> None:
    connection: Any = Unread()
    writer = SocketWriter(connection, FrontendConfig(max_buffered_bytes=100), lambda: None)
    writer.send(b"one")
    writer.send(b"two")
    writer.close()
    connection.read.set()
    await writer.run()
    assert connection.sent == [b"one", b"two"]
    assert connection.closed

"""Sends the frames of one WebSocket as fast as its client reads them, and queues a bounded number
of bytes."""

import asyncio
from collections.abc import Callable

from aiohttp import WSMsgType, web

from services.runtime.config.frontend import FrontendConfig


class SocketWriter:
    """Sends the frames of one connection."""

    def __init__(
        self, ws: web.WebSocketResponse, config: FrontendConfig, on_slow: Callable[[], None]
    ) -> None:
        """`on_slow`: called when the client does not read."""
        self._ws = ws
        self._config = config
        self._on_slow = on_slow
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        """None ends the connection."""
        self._bytes = 0
        self._closing = False

    def send(self, frame: bytes) -> None:
        """Queues a frame. A client that leaves too many bytes unread is disconnected."""
        if self._closing:
            return
        self._frames.put_nowait(frame)
        self._bytes += len(frame)
        if self._bytes > self._config.max_buffered_bytes:
            self._give_up()

    def close(self) -> None:
        """Closes the connection after the queued frames."""
        self._closing = True
        self._frames.put_nowait(None)

    async def run(self) -> None:
        """Sends until `close`, then closes the connection."""
        try:
            while True:
                frame = await self._frames.get()
                if frame is None:
                    break
                self._bytes -= len(frame)
                async with asyncio.timeout(self._config.slow_reader_timeout_s):
                    await self._ws.send_frame(frame, WSMsgType.TEXT)
            await self._ws.close()
        except (TimeoutError, ConnectionError):
            self._give_up()
        finally:
            self._on_slow = _nothing  # the connection's own method: a cycle

    def _give_up(self) -> None:
        while not self._frames.empty():
            self._frames.get_nowait()
        self.close()
        self._on_slow()


def _nothing() -> None:
    pass

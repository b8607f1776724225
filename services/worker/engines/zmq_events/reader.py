"""Receives vLLM's KV events over ZMQ."""

import asyncio
import importlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

from typing_extensions import override

from services.worker.engines.zmq_events.translator import ZmqKvTranslator
from services.worker.kv.events import BlocksStored, CacheUnpredictable, GroupStored, KvEvent

BUFFERED_BATCHES = 100_000
"""The number that vLLM itself keeps for a slow reader (`KVEventsConfig.hwm`)."""


class ZmqKvReader:
    """One subscription to a publisher. To be made on the event loop."""

    def __init__(self, endpoint: str) -> None:
        zmq = importlib.import_module("zmq")
        self.endpoint = endpoint
        self._context = importlib.import_module("zmq.asyncio").Context()
        self._socket: Any = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, BUFFERED_BATCHES)
        self._socket.set(zmq.RECONNECT_IVL, 20)  # ms; until the engine has bound its end
        if "[" in endpoint:
            self._socket.set(zmq.IPV6, 1)
        self._socket.subscribe(b"")
        self._socket.connect(self.endpoint)
        self._early: list[tuple[int, bytes]] = []
        """Batches that arrived before `read`."""
        self._closed = False

    async def read(self, block_tokens: int) -> AsyncGenerator[KvEvent, None]:
        """Yields the events until `close`."""
        translator = ZmqKvTranslator(block_tokens)
        for number, payload in self._early:
            for event in translator.translate(number, payload):
                yield event
        while not self._closed:
            try:
                number, payload = await self._receive()
            except asyncio.CancelledError:
                if self._closed:
                    return  # closing the socket cancels its waits
                raise
            for event in translator.translate(number, payload):
                yield event

    async def finds(self, prompt: Sequence[int], block_tokens: int, limit_s: float) -> bool:
        """Whether the engine reports the first block of a prompt within a time. To be called before
        `read`, which yields these events, too."""
        translator = ZmqKvTranslator(block_tokens)
        first = list(prompt[:block_tokens])
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while True:
                    batch = await self._receive()
                    self._early.append(batch)
                    if any(_shows(event, first) for event in translator.translate(*batch)):
                        return True
        return False

    async def _receive(self) -> tuple[int, bytes]:
        """Returns the next batch, with its number."""
        _, number, payload = await self._socket.recv_multipart()
        return int.from_bytes(number, "big"), payload

    def close(self) -> None:
        """Ends `read`."""
        self._closed = True
        self._context.destroy(linger=0)


def _shows(event: KvEvent, first: list[int]) -> bool:
    """Whether an event has the first block of a prompt, or shows how the engine reuses blocks."""
    if isinstance(event, BlocksStored):
        return event.parent is None and event.blocks[0][1] == first
    return isinstance(event, GroupStored | CacheUnpredictable)


class LocalKvReader(ZmqKvReader):
    """A subscription to an engine in this process, to be made before the engine: events without a
    subscriber are lost."""

    def __init__(self) -> None:
        # A private directory: the events contain the prompts' tokens.
        self._directory = tempfile.mkdtemp(prefix="turnwire-kv-")
        super().__init__(f"ipc://{self._directory}/events")

    @override
    def close(self) -> None:
        super().close()
        shutil.rmtree(self._directory, ignore_errors=True)

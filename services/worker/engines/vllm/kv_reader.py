"""Receives vLLM's KV events over ZMQ."""

import asyncio
import importlib
import shutil
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

from typing_extensions import override

from services.worker.engine import KvEvent
from services.worker.engines.vllm.events import VllmKvTranslator

BUFFERED_BATCHES = 100_000
"""The number that vLLM itself keeps for a slow reader (`KVEventsConfig.hwm`)."""


class VllmKvReader:
    """One subscription to a publisher. To be made on the event loop."""

    def __init__(self, endpoint: str) -> None:
        zmq = importlib.import_module("zmq")
        self.endpoint = endpoint
        self._context = importlib.import_module("zmq.asyncio").Context()
        self._socket: Any = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, BUFFERED_BATCHES)
        self._socket.set(zmq.RECONNECT_IVL, 20)  # ms; until the engine has bound its end
        self._socket.subscribe(b"")
        self._socket.connect(self.endpoint)
        self._closed = False

    async def read(self, block_tokens: int) -> AsyncGenerator[KvEvent, None]:
        """Yields the events until `close`."""
        translator = VllmKvTranslator(block_tokens)
        while not self._closed:
            try:
                _, number, payload = await self._socket.recv_multipart()
            except asyncio.CancelledError:
                if self._closed:
                    return  # closing the socket cancels its waits
                raise
            for event in translator.translate(int.from_bytes(number, "big"), payload):
                yield event

    def close(self) -> None:
        """Ends `read`."""
        self._closed = True
        self._context.destroy(linger=0)


class LocalKvReader(VllmKvReader):
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

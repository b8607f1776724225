"""Decides when a worker that drains has nothing left to do."""

import asyncio

from services.runtime.process import Process
from services.worker.output.kept_streams import KeptStreams


class Drain:
    """The end of one worker: no turn decodes, no request waits for its images, and the shards have
    everything."""

    def __init__(self, process: Process, streams: KeptStreams) -> None:
        self._process = process
        self._streams = streams
        self._requests: set[asyncio.Task[None]] = set()
        """Requests that are not answered yet."""
        self._settled = asyncio.Event()
        """Set only while the process drains."""

    async def wait(self) -> None:
        """Returns when nothing is left to do."""
        self.check()
        await self._settled.wait()

    def add_request(self, request: "asyncio.Task[None]") -> None:
        """Waits for the answer to a request, too, and keeps its task alive."""
        self._requests.add(request)
        request.add_done_callback(self._answered)

    def _answered(self, request: "asyncio.Task[None]") -> None:
        self._requests.discard(request)
        self.check()

    def turn_ended(self) -> None:
        """Notes that a turn has ended."""
        self.check()
        if not self._streams.busy and self._process.draining:
            # a heartbeat makes the shards acknowledge what they have
            self._process.heartbeats.send_soon()

    def check(self) -> None:
        """Ends `wait` if nothing is left to do. To be called when something has ended or
        arrived."""
        if not self._process.draining or self._settled.is_set():
            return
        if self._streams.busy or self._requests:
            return
        registry = self._process.registry
        for stream in self._streams.ended():
            if stream.delivered:
                continue
            # If the parser is gone, a living frontend waits for another one.
            if registry.get("parser", stream.parser) or registry.get("frontend", stream.frontend):
                # rare: a worker that leaves still has tokens for another process
                return
        self._settled.set()

"""Serves the Responses API over one WebSocket: many responses on a connection, one at a time in
each lane.

The client sends `response.create` frames and receives the events of the stream, one per frame, each
with the name of its lane. The connection keeps its own responses, also with `store: false`, so that
the next request needs only new items: Codex sends the result of a tool call without the history.

An invalid frame is answered with an error, and the connection stays open. When a client hangs up,
or does not read for too long, its turns are cancelled.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from aiohttp import WSMsgType, web
from cachetools import LRUCache
from msgspec.structs import replace
from typing_extensions import override

from schemas.errors import (
    RETRY_AFTER_S,
    ErrorInfo,
    ErrorKind,
    Invalid,
    RateLimited,
    TurnwireError,
    raised,
    unexpected,
)
from schemas.events import Finish, FinishReason, Usage
from services.frontend.apis.responses.parse.body import DecodedRequest
from services.frontend.apis.responses.render.events import payloads
from services.frontend.apis.responses.state.accepted_request import AcceptedRequest
from services.frontend.apis.responses.state.detached import DetachedResponse
from services.frontend.apis.responses.state.request_reader import RequestReader
from services.frontend.apis.responses.state.socket import frames
from services.frontend.apis.responses.state.socket.socket_writer import SocketWriter
from services.frontend.http.auth import Callers
from services.frontend.http.bodies import is_large
from services.frontend.http.held_bytes import HeldBytes
from services.frontend.http.request_context import REQUEST_CONTEXT, RequestContext
from services.frontend.stored.memory import ConnectionStore, StoreLimits
from services.frontend.stored.record import StoredResponse
from services.frontend.turns.turn_service import ModelAccess
from services.runtime.config.base import MIB
from services.runtime.long_work import run_in_thread_if

MAX_AGE_S = 60 * 60.0
"""The maximum age of a connection, as in the native API."""
MAX_LANES = 32
"""The most lanes in which a response runs or waits."""
MAX_WAITING = 8
"""The most requests that wait in one lane."""
MAX_FRAME_BYTES = 16 * MIB
"""The most bytes of a frame, also after decompression, which aiohttp does on the event loop."""
MAX_HELD_BYTES = 4 * MAX_FRAME_BYTES
"""The most bytes of requests that run or wait on a connection."""
MAX_TARGETS = 4096
"""The number of latest responses with a known lane."""
MEMORY_BYTES = 64 * MIB
MEMORY_ENTRIES = 4096
"""Limits of a connection's store. For a dropped response a client gets
`previous_response_not_found`, on which it sends the whole history."""


class LaneRequest(NamedTuple):
    """A request that runs or waits in a lane."""

    decoded: DecodedRequest
    size: int
    """The bytes of its frame."""


class SocketConnection:
    """One connection."""

    def __init__(
        self,
        ws: web.WebSocketResponse,
        http: web.Request,
        reader: RequestReader,
        callers: Callers,
    ) -> None:
        self._ws = ws
        self._http = http
        self._context = http[REQUEST_CONTEXT]
        self._reader = reader
        self._callers = callers
        limits = StoreLimits(
            MAX_AGE_S * 2, MEMORY_ENTRIES, MEMORY_BYTES, reader.turns.config.max_body_bytes
        )
        self._memory = ConnectionStore(limits, time.time, reader.store)
        self._writer = SocketWriter(ws, reader.turns.config, self._disconnect)
        self._lanes: dict[str | None, deque[LaneRequest]] = {}
        """The requests of each busy lane; the first one runs."""
        self._held = HeldBytes(MAX_HELD_BYTES, within=self._context.caller.held)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = ""
        """The reason why no new requests are accepted; "" as long as they are."""
        self._steers = 0
        self._lane_of: LRUCache[str, str] = LRUCache(MAX_TARGETS)
        """The lanes of the latest responses, for steering frames, which name only the response."""

    async def run(self) -> None:
        """Serves the connection until it is closed."""
        minutes = round(MAX_AGE_S / 60)
        too_old = (
            f"This connection has reached its limit of {minutes} minutes; open a new one to go on."
        )
        timer = asyncio.get_running_loop().call_later(MAX_AGE_S, self.end, too_old)
        writing = asyncio.create_task(self._writer.run())
        try:
            async for message in self._ws:
                if message.type is WSMsgType.TEXT:
                    await self._receive(message.data.encode())
                elif message.type is WSMsgType.BINARY:
                    self._refuse(Invalid("Frames must be text.", code="invalid_type").info, None)
        finally:
            timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._held.free(self._held.held)
            self._writer.close()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def end(self, reason: str) -> None:
        """Accepts no new requests; the connection is closed when its responses have ended."""
        self._ending = self._ending or reason
        if not self._lanes:
            self._refuse(_closing(self._ending), None)
            self._writer.close()

    def _disconnect(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._http.transport is not None:
            self._http.transport.abort()

    async def _receive(self, data: bytes) -> None:
        with self._errors_sent(None):
            large = is_large(data)
            envelope = await run_in_thread_if(large, frames.read_envelope, data)
            if envelope.type == "response.steer":
                self._refuse_to_steer(envelope)
                return
            lane = frames.lane_of(envelope)
            with self._errors_sent(lane):
                if envelope.type != "response.create":
                    message = f"Unknown frame type: '{str(envelope.type)[:64]}'."
                    raise Invalid(message, param="type", code="invalid_value")
                if self._ending:
                    raise raised(_closing(self._ending))
                decoded = await run_in_thread_if(large, self._reader.responses.decode, data)
                self._enqueue(lane, LaneRequest(decoded, len(data)))

    def _refuse_to_steer(self, envelope: frames.Envelope) -> None:
        response = envelope.previous_response_id
        lane = self._lane_of.get(response) if isinstance(response, str) else None
        self.send([frames.steer_refused(envelope, self._steers)], lane)
        self._steers += 1

    @contextmanager
    def _errors_sent(self, lane: str | None) -> Iterator[None]:
        """Sends errors to the client, so that one frame or response does not end other lanes."""
        try:
            yield
        except TurnwireError as error:
            self._refuse(error.info, lane)
        except Exception as error:
            self._reader.turns.log.exception(
                "responses.frame_failed", request=self._context.request_id
            )
            self._refuse(unexpected(error), lane)

    def _enqueue(self, lane: str | None, request: LaneRequest) -> None:
        if request.decoded.body.background:
            raise Invalid(
                "'background' is not for WebSockets; send it over HTTP.", param="background"
            )
        waiting = self._lanes.get(lane)
        if waiting is not None:
            if len(waiting) > MAX_WAITING:
                raise _too_many(f"At most {MAX_WAITING} requests may wait in one stream.")
            self._hold(request)
            waiting.append(request)
            return
        if len(self._lanes) >= MAX_LANES:
            raise _too_many(
                f"At most {MAX_LANES} streams may be at work on one connection.", param="stream_id"
            )
        self._hold(request)
        self._lanes[lane] = deque([request])
        task = asyncio.create_task(self._serve(lane), name=f"lane {lane}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hold(self, request: LaneRequest) -> None:
        """Counts a request's bytes. Raises RateLimited if they exceed the limit."""
        if not self._held.add(request.size):
            mib = MAX_HELD_BYTES // MIB
            raise _too_many(
                f"At most {mib} MiB of requests may run or wait on one connection, and those of "
                "your other connections count, too."
            )

    async def _serve(self, lane: str | None) -> None:
        """Answers the requests of one lane in order, until there are no more."""
        waiting = self._lanes[lane]
        try:
            while waiting:
                with self._errors_sent(lane):
                    await self._respond(lane, waiting[0].decoded)
                self._held.free(waiting.popleft().size)
        finally:
            del self._lanes[lane]
        if self._ending:
            self.end(self._ending)

    async def _respond(self, lane: str | None, decoded: DecodedRequest) -> None:
        context = RequestContext(secrets.token_hex(12), None, asyncio.get_running_loop().time())
        # The key may have been removed, or have expired, since the connection was opened.
        context.caller = self._callers.renew(self._context.caller)
        model = ModelAccess(self._reader.turns, context)
        with context.open_request():
            accepted = await self._reader.read(
                decoded, self._http.headers, model, store=self._memory
            )
            response = LaneResponse(self, lane, accepted, model)
            if lane is not None:
                self._lane_of[response.id] = lane
            await self._make(response, decoded)

    async def _make(self, response: "LaneResponse", decoded: DecodedRequest) -> None:
        """Runs a response's turn. Codex warms up with instructions only, which some templates
        cannot render: that is an empty response."""
        try:
            await response.make()
        except Invalid as error:
            if not decoded.prompt_only or error.kind is not ErrorKind.INVALID:
                raise
            response.end_empty()

    def keep(self, record: StoredResponse) -> None:
        """Keeps a response for the next requests of this connection."""
        self._memory.put(record)

    def share(self, record: StoredResponse) -> None:
        """Stores a response for other connections."""
        self._reader.store.put(record)

    def _refuse(self, info: ErrorInfo, lane: str | None) -> None:
        self.send([frames.error_frame(info)], lane)

    def send(self, payloads: Iterable[bytes], lane: str | None) -> None:
        """Sends events of a response in its lane."""
        suffix = frames.lane_suffix(lane)
        for payload in payloads:
            self._writer.send(payload[:-1] + suffix)


class LaneResponse(DetachedResponse):
    """A response in a lane of a connection."""

    def __init__(
        self,
        socket: SocketConnection,
        lane: str | None,
        accepted: AcceptedRequest,
        model: ModelAccess,
    ) -> None:
        super().__init__(accepted, model)
        self._socket = socket
        self._lane = lane

    @override
    def emit(self, rendered: bytes) -> None:
        self._socket.send(payloads(rendered), self._lane)

    @override
    def on_end(self) -> None:
        """Keeps the response before the client gets its end: the client's next request may continue
        it."""
        record = self.accepted.record(self.recorder.stream)
        self._socket.keep(record)
        if self.accepted.request.decoded.store:
            self._socket.share(replace(record, events=self.recorder.recording()))

    def end_empty(self) -> None:
        """Ends the response to a warm-up that could not start: Codex warms up with instructions
        only, which some templates cannot render."""
        self.emit_opening()
        last = self.recorder.render([Finish(FinishReason.LENGTH, 0, Usage())])
        self.on_end()
        self.emit(last)


def _closing(reason: str) -> ErrorInfo:
    return ErrorInfo(ErrorKind.INVALID, reason, code=frames.CONNECTION_LIMIT)


def _too_many(message: str, param: str | None = None) -> RateLimited:
    return RateLimited(
        message, "streams", param=param, code=frames.STREAM_LIMIT, retry_after_s=RETRY_AFTER_S
    )

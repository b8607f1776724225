"""The Responses API over a WebSocket (apis.md B.7): many responses on one connection, one at a time in each lane.

What a client sends are `response.create` frames; what it gets are the events of the stream, one a frame, each with the
name of its lane. The connection remembers its own responses, those with `store: false` too, so that the next request
brings only what is new: Codex sends the result of a tool call and no history.

A frame that is wrong is answered with an error, and the connection lives. A client that hangs up, or takes nothing for
too long, has its turns cancelled.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from schemas.errors import ErrorInfo, ErrorKind, Invalid, RateLimited, TurnwireError, raised
from schemas.events import Finish, FinishReason, Usage
from services.frontend.dialects.responses.dialect import Responses
from services.frontend.dialects.responses.document import response_id
from services.frontend.dialects.responses.request import ResponsesRequest
from services.frontend.dialects.responses.stream import payloads
from services.frontend.exchange import EXCHANGE
from services.frontend.responses import socket_frames as frames
from services.frontend.responses.intake import Intake
from services.frontend.responses.recording import RecordingStream
from services.frontend.responses.runner import NOTHING, Runner
from services.frontend.responses.store import MemoryStore, ResponseStore

MAX_AGE_S = 60 * 60.0
"""As natively."""
MAX_LANES = 32
"""Lanes in which something runs or waits."""
MAX_WAITING = 8
"""Requests that wait in one lane."""
MAX_TARGETS = 4096
"""Responses whose lane is remembered."""
RETRY_AFTER_S = 1.0


class SocketLimits(Struct, frozen=True):
    """How long and how much a connection may take."""

    slow_reader_timeout_s: float
    max_buffered_bytes: int
    max_age_s: float = MAX_AGE_S


class Services(Struct, frozen=True):
    """What every connection uses."""

    dialect: Responses
    runner: Runner
    store: ResponseStore
    log: FilteringBoundLogger
    limits: SocketLimits


class Socket:
    """One connection."""

    def __init__(
        self,
        ws: web.WebSocketResponse,
        request: web.Request,
        services: Services,
        *,
        memory: MemoryStore,
        intake: Intake,
    ) -> None:
        """`memory`: where the connection remembers its responses; `intake` looks there first."""
        self._ws = ws
        self._request = request
        self._exchange = request[EXCHANGE]
        self._services = services
        self._memory = memory
        self._intake = intake
        self._outbox = Outbox(ws, services.limits, self._give_up)
        self._lanes: dict[str | None, deque[ResponsesRequest]] = {}
        """Requests of each lane at work: the first one runs."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: str | None = None
        """Why nothing new is taken any more."""
        self._steers = 0
        self._lane_of: dict[str, str] = {}
        """The lanes of the responses that were made last: a steering frame names a response only."""

    async def run(self) -> None:
        """Serves the connection until it is closed."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._services.limits.max_age_s, self._too_old)
        writing = asyncio.create_task(self._outbox.run())
        try:
            async for message in self._ws:
                if message.type is WSMsgType.TEXT:
                    self._frame(message.data)
                elif message.type is WSMsgType.BINARY:
                    self._refuse(Invalid("Frames must be text.", code="invalid_type").info, None)
        finally:
            timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._outbox.close()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def end(self, reason: str) -> None:
        """Takes nothing new; the connection is closed when the responses at work have ended."""
        self._ending = self._ending or reason
        if not self._lanes:
            self._refuse(_over(self._ending), None)
            self._outbox.close()

    def _too_old(self) -> None:
        minutes = round(self._services.limits.max_age_s / 60)
        self.end(f"This connection has reached its limit of {minutes} minutes; open a new one to go on.")

    def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._request.transport is not None:
            self._request.transport.abort()

    def _frame(self, data: bytes) -> None:
        lane: str | None = None
        try:
            envelope = frames.read_envelope(data)
            if envelope.type == "response.steer":
                self._refuse_steering(envelope)
                return
            lane = frames.lane_of(envelope)
            if envelope.type != "response.create":
                raise Invalid(f"Unknown frame type: '{str(envelope.type)[:64]}'.", param="type", code="invalid_value")
            if self._ending is not None:
                raise raised(_over(self._ending))
            self._take(lane, data)
        except TurnwireError as error:
            self._refuse(error.info, lane)
        except Exception:
            self._services.log.exception("responses.frame_failed", request=self._exchange.request_id)
            self._refuse(ErrorInfo(ErrorKind.ENGINE, "Internal server error"), lane)

    def _take(self, lane: str | None, data: bytes) -> None:
        request = self._services.dialect.decode(data)
        if request.background:
            raise Invalid("'background' is not for WebSockets; send it over HTTP.", param="background")
        waiting = self._lanes.get(lane)
        if waiting is None:
            if len(self._lanes) >= MAX_LANES:
                raise RateLimited(
                    f"At most {MAX_LANES} streams may be at work on one connection.",
                    param="stream_id",
                    code=frames.STREAM_LIMIT,
                    retry_after_s=RETRY_AFTER_S,
                )
            self._lanes[lane] = deque([request])
            task = asyncio.create_task(self._serve(lane), name=f"lane {lane}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if len(waiting) > MAX_WAITING:
            raise RateLimited(
                f"At most {MAX_WAITING} requests may wait in one stream.",
                code=frames.STREAM_LIMIT,
                retry_after_s=RETRY_AFTER_S,
            )
        waiting.append(request)

    async def _serve(self, lane: str | None) -> None:
        """Answers the requests of one lane, one after the other, until there are no more."""
        waiting = self._lanes[lane]
        try:
            while waiting:
                await self._respond(lane, waiting[0])
                waiting.popleft()
        finally:
            del self._lanes[lane]
        if self._ending is not None:
            self.end(self._ending)

    async def _respond(self, lane: str | None, request: ResponsesRequest) -> None:
        runner, exchange = self._services.runner, self._services.runner.exchange(self._exchange)
        suffix = frames.suffix_of(lane)

        def emit(rendered: bytes) -> None:
            for payload in payloads(rendered):
                self._outbox.send(frames.on_lane(payload, suffix))

        try:
            asked = await self._intake.asked(request, self._request.headers, exchange)
            reply = runner.reply(exchange, request.model)
            if lane is not None:
                self._lane_of[response_id(reply.turn)] = lane
            if len(self._lane_of) > MAX_TARGETS:
                del self._lane_of[next(iter(self._lane_of))]
            stream = asked.ask.renderer(reply)
            renderer = RecordingStream(stream) if request.store else stream

            def on_end() -> None:
                # Found before the client hears that the response has ended, and may go on from it.
                record = asked.record(renderer, created=reply.created)
                self._memory.put(record)
                if isinstance(renderer, RecordingStream):
                    events = renderer.events_packed()
                    self._services.store.put(msgspec.structs.replace(record, events=events))

            cost = runner.record()
            try:
                with exchange.turn(cost):
                    await runner.run(asked.ask, renderer, exchange, cost, emit=emit, on_end=on_end)
            except Invalid as error:
                if not request.prefill or error.kind is not ErrorKind.INVALID:
                    raise
                # Instructions alone, with which Codex warms up, are no conversation to some templates.
                emit(renderer.start([NOTHING]))
                last = renderer.events([Finish(FinishReason.LENGTH, 0, Usage())])
                on_end()
                emit(last)
        except TurnwireError as error:
            self._refuse(error.info, lane)
        except Exception:
            self._services.log.exception("responses.socket_failed", request=exchange.request_id)
            self._refuse(ErrorInfo(ErrorKind.ENGINE, "Internal server error"), lane)

    def _refuse_steering(self, envelope: frames.Envelope) -> None:
        target = envelope.previous_response_id
        lane = self._lane_of.get(target) if isinstance(target, str) else None
        self._outbox.send(frames.steer_refused(envelope, self._steers, lane))
        self._steers += 1

    def _refuse(self, info: ErrorInfo, lane: str | None) -> None:
        self._outbox.send(frames.error_frame(info, lane))


class Outbox:
    """Frames on their way out: sent as the client reads them, and never more of them than allowed."""

    def __init__(self, ws: web.WebSocketResponse, limits: SocketLimits, on_gone: Callable[[], None]) -> None:
        """`on_gone`: called once if the client does not read any more."""
        self._ws = ws
        self._limits = limits
        self._on_gone = on_gone
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._closing = False
        self._wake = asyncio.Event()

    def send(self, frame: bytes) -> None:
        """Puts a frame on its way. A client that leaves too much unread is given up."""
        if self._closing:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._wake.set()
        if self._bytes > self._limits.max_buffered_bytes:
            self._give_up()

    def close(self) -> None:
        """Closes the connection behind what is on its way."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Sends until `close`, then closes the connection."""
        try:
            while self._frames or not self._closing:
                if not self._frames:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                frame = self._frames.popleft()
                self._bytes -= len(frame)
                async with asyncio.timeout(self._limits.slow_reader_timeout_s):
                    await self._ws.send_frame(frame, WSMsgType.TEXT)
            await self._ws.close()
        except (TimeoutError, ConnectionError):
            self._give_up()

    def _give_up(self) -> None:
        self._frames.clear()
        self._closing = True
        self._wake.set()
        self._on_gone()


def _over(reason: str) -> ErrorInfo:
    return ErrorInfo(ErrorKind.INVALID, reason, code=frames.CONNECTION_LIMIT)

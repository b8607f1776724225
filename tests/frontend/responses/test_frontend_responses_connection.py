"""Tests the Responses WebSocket: lanes, stored responses, errors, limits, and closing."""

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from schemas.errors import ContextOverflow, Invalid, Overloaded
from schemas.events import FinishReason
from services.frontend.apis.responses.state.socket import connection as limits
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.responses.responses_client import Client, agent, keyed, said
from tests.kit.bodies import MODEL
from tests.kit.events import Step, finish, text
from tests.kit.every import Cases
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.waiting import LIMIT_S, eventually


def create(**body: Any) -> str:
    asked = {"type": "response.create", "model": MODEL, "input": "hi", "store": False}
    return json.dumps(asked | body)


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(agent)


ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


class Socket:
    """A connection."""

    def __init__(self, ws: ClientWebSocketResponse) -> None:
        self.ws = ws

    async def send(self, **body: Any) -> None:
        """Sends a request."""
        await self.ws.send_str(create(**body))

    async def receive(self) -> dict[str, Any]:
        """The next frame."""
        message = await self.ws.receive(LIMIT_S)
        assert message.type is WSMsgType.TEXT, message
        frame: dict[str, Any] = json.loads(message.data)
        return frame

    async def closed(self) -> bool:
        """Whether the connection is closed next."""
        return (await self.ws.receive(LIMIT_S)).type is WSMsgType.CLOSE

    async def frames(self, lane: str | None = None) -> list[dict[str, Any]]:
        """The frames of the answer that comes next, which must all name this lane."""
        frames: list[dict[str, Any]] = []
        while not frames or frames[-1]["type"] not in ENDS:
            frames.append(await self.receive())
            assert frames[-1].get("stream_id") == lane
        return frames

    async def completed(self, lane: str | None = None) -> dict[str, Any]:
        """The Response that comes next, which must be complete."""
        last = (await self.frames(lane))[-1]
        assert last["type"] == "response.completed"
        response: dict[str, Any] = last["response"]
        return response

    async def complete(self, **body: Any) -> dict[str, Any]:
        """Sends a request. Returns its Response, which must be complete."""
        await self.send(**body)
        return await self.completed(body.get("stream_id"))

    async def refused(self, frame: str, lane: str | None = None) -> dict[str, Any]:
        """The error that answers a frame."""
        await self.ws.send_str(frame)
        answered = await self.receive()
        assert answered["type"] == "error"
        assert answered.get("stream_id") == lane
        return {**answered["error"], "status": answered["status"]}

    async def refuse(self, **body: Any) -> dict[str, Any]:
        """Sends a request. Returns the error that answers it, on its lane."""
        return await self.refused(create(**body), body.get("stream_id"))


@asynccontextmanager
async def connecting(served: Served, **options: Any) -> AsyncIterator[Socket]:
    """A connection to the server."""
    async with served.http.ws_connect("/v1/responses", **options) as ws:
        yield Socket(ws)


@pytest.fixture
async def socket(served: Served) -> AsyncIterator[Socket]:
    async with connecting(served) as connection:
        yield connection


async def test_response_is_sent_as_its_events(served: Served, socket: Socket) -> None:
    await socket.send(store=True)
    frames = await socket.frames()
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert [frame["type"] for frame in frames[:2]] == ["response.created", "response.in_progress"]
    client = Client(served)
    made = frames[-1]["response"]
    assert await client.get(made["id"]) == made
    assert await client.replay(made["id"]) == frames


async def test_codex_session_is_served(served: Served, socket: Socket) -> None:
    """Warms up, asks and sends a result: each frame has only new items, and nothing is stored."""
    served.gateway.steps = lambda: [[finish(0, FinishReason.LENGTH)]]
    rules = [{"role": "developer", "content": "rules"}]
    warm = await socket.complete(generate=False, input=rules)
    served.gateway.steps = agent
    question = [{"role": "user", "content": "do"}]
    asked = await socket.complete(previous_response_id=warm["id"], input=question)
    output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    await socket.complete(previous_response_id=asked["id"], input=[output])
    warmed, first, second = (turn.conversation for turn in served.gateway.turns)
    assert warmed.sampling.max_tokens == 0
    assert said(first) == [("developer", ["rules"]), ("user", ["do"])]
    assert [role for role, _ in said(second)] == ["developer", "user", "assistant", "tool"]
    assert second.messages[:2] == first.messages
    await Client(served).refused("GET", f"/{asked['id']}", 404)
    async with connecting(served) as other:
        error = await other.refuse(previous_response_id=asked["id"])
        assert (error["status"], error["code"]) == (400, "previous_response_not_found")


async def test_warm_up_succeeds_with_a_template_that_needs_a_question(
    served: Served, socket: Socket
) -> None:
    served.gateway.refusal = Invalid("No user query found in messages.")
    rules = [{"role": "developer", "content": "rules"}]
    warm = await socket.complete(generate=False, input=rules)
    assert warm["output"] == []
    assert (await socket.refuse())["message"] == "No user query found in messages."
    served.gateway.refusal = ContextOverflow("too long", code="context_length_exceeded")
    assert (await socket.refuse(generate=False))["code"] == "context_length_exceeded"
    served.gateway.refusal = None
    await socket.complete(previous_response_id=warm["id"])
    assert said(served.gateway.turns[-1].conversation)[0] == ("developer", ["rules"])


async def test_lanes_run_concurrently_and_each_answers_in_order(
    served: Served, socket: Socket
) -> None:
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    order = iter(["a", "b"])
    served.gateway.steps = lambda: [[*text(0, "x")], gates[next(order)], [finish(1)]]
    await socket.send(stream_id="a")
    await socket.send(stream_id="b")
    seen: dict[str, list[str]] = {"a": [], "b": []}
    while not all("response.output_text.delta" in types for types in seen.values()):
        frame = await socket.receive()
        seen[frame["stream_id"]].append(frame["type"])
    for lane in ("b", "a"):
        gates[lane].set()
        await socket.completed(lane)
    served.gateway.steps = agent
    for number in range(3):
        await socket.send(stream_id="a", input=f"{number}")
    for number in range(3):
        assert (await socket.frames("a"))[0]["type"] == "response.created"
        assert said(served.gateway.conversations[2 + number]) == [("user", [str(number)])]


async def test_excess_lanes_and_waiting_requests_are_refused(
    served: Served, socket: Socket
) -> None:
    served.gateway.hold = asyncio.Event()
    for number in range(limits.MAX_LANES):
        await socket.send(stream_id=f"lane{number}")
    error = await socket.refuse(stream_id="one-more")
    assert (error["status"], error["code"]) == (429, "websocket_stream_limit_reached")
    for _ in range(limits.MAX_WAITING):
        await socket.send(stream_id="lane0")
    error = await socket.refuse(stream_id="lane0")
    assert error["code"] == "websocket_stream_limit_reached"
    served.gateway.hold.set()
    for _ in range(limits.MAX_LANES + limits.MAX_WAITING):
        while (await socket.receive())["type"] != "response.completed":
            pass
    await socket.complete(stream_id="one-more")


async def test_requests_that_wait_are_bounded_in_bytes(
    served: Served, socket: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of both connections count for the caller, and are free again with its turns."""
    held = served.callers.caller_of("").held
    monkeypatch.setattr(held, "limit", 250_000)
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 200_000)
    served.gateway.hold = asyncio.Event()
    async with connecting(served) as other:
        long = "x" * 90_000
        await other.send(input=long, stream_id="a")
        await other.send(input=long, stream_id="a")
        error = await other.refuse(input=long, stream_id="b")
        assert (error["status"], error["code"]) == (429, "websocket_stream_limit_reached")
        error = await socket.refuse(input=long)
        assert (error["status"], error["code"]) == (429, "websocket_stream_limit_reached")
        served.gateway.hold.set()
        await other.completed("a")
        await socket.complete(input=long)
        await other.completed("a")
    await eventually(lambda: not held.held)


INVALID = [
    ("{", "invalid_json"),
    ("{}", "missing_required_parameter"),
    ('{"type": "response.destroy"}', "invalid_value"),
    (json.dumps({"type": "response.create", "stream_id": "x" * 257}), "invalid_stream_id"),
    (create(input=7), "invalid_type"),
]


async def test_invalid_frame_is_answered_and_the_connection_stays_open(
    socket: Socket, cases: Cases
) -> None:
    for frame, code in INVALID:
        with cases.case(frame[:40]):
            error = await socket.refused(frame)
            assert (error["status"], error["code"]) == (400, code)
            assert error["type"] == "invalid_request_error"
    await socket.ws.send_bytes(b"\x00\xff")
    assert (await socket.receive())["error"]["message"] == "Frames must be text."
    await socket.complete()


async def test_steering_is_refused_on_the_lane_of_its_response_and_returns_the_input(
    socket: Socket,
) -> None:
    made = await socket.complete(stream_id="a")
    steer = {"previous_response_id": made["id"], "input": [{"role": "user", "content": "no"}]}
    await socket.ws.send_str(json.dumps({"type": "response.steer", **steer}))
    answered = await socket.receive()
    assert answered["type"] == "response.steer.failed"
    assert answered["error"]["code"] == "steering_not_supported"
    assert (answered["steer"], answered["stream_id"]) == (steer, "a")


async def test_turn_that_cannot_start_is_an_error_frame(served: Served, socket: Socket) -> None:
    served.gateway.refusal = Overloaded("busy", retry_after_s=3)
    answered = await socket.refuse(stream_id="x")
    assert (answered["status"], answered["code"]) == (503, "server_is_overloaded")
    assert (await socket.refuse(model="none"))["code"] == "model_not_found"
    served.gateway.refusal = None
    await socket.complete()


async def test_hangup_cancels_every_turn(served: Served) -> None:
    served.gateway.steps = lambda: [[*text(0, "x")], asyncio.Event()]
    async with connecting(served) as socket:
        for lane in ("a", "b"):
            await socket.send(stream_id=lane)
        deltas = 0
        while deltas < 2:
            deltas += (await socket.receive())["type"] == "response.output_text.delta"
    for turn in served.gateway.turns:
        await asyncio.wait_for(turn.cancel_seen.wait(), LIMIT_S)
        assert turn.cancelled == ["hangup"]
    await eventually(lambda: len(served.responses.connections) == 0)


async def test_client_that_does_not_read_is_disconnected() -> None:
    pieces = text(0, "x" * 16_000_000, pieces=160)[:-1]
    flood: list[Step] = [*([piece] for piece in pieces), asyncio.Event()]
    config = FrontendConfig(slow_reader_timeout_s=0.2, max_buffered_bytes=1 << 26)
    async with (
        serving(FakeGateway(lambda: list(flood)), config) as served,
        connecting(served, max_msg_size=0) as socket,
    ):
        await socket.send()
        await eventually(lambda: bool(served.gateway.turns and served.gateway.turns[0].cancelled))


async def test_oversized_frame_ends_the_connection_and_a_bomb_costs_no_more() -> None:
    config = FrontendConfig(max_body_bytes=100_000)
    async with serving(FakeGateway(agent), config) as served:
        for compress in (0, 15):
            async with connecting(served, compress=compress) as socket:
                assert bool(socket.ws.compress) is bool(compress)
                frame = create(input="x" * 5_000_000)
                assert len(zlib.compress(frame.encode())) < 100_000
                with contextlib.suppress(ConnectionError):  # closed before all is sent
                    await socket.ws.send_str(frame)
                message = await socket.ws.receive(LIMIT_S)
                assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR)
                assert message.type is not WSMsgType.CLOSE or message.data == 1009
        async with connecting(served, compress=15) as socket:
            await socket.complete(input="x" * 50_000)


async def test_drain_lets_running_responses_end(served: Served) -> None:
    go = asyncio.Event()
    served.gateway.steps = lambda: [[*text(0, "x")], go, [finish(1)]]
    async with connecting(served) as busy, connecting(served) as idle:
        await busy.send()
        while (await busy.receive())["type"] != "response.output_text.delta":
            pass
        await served.responses.drain()
        assert (await idle.receive())["error"]["code"] == "websocket_connection_limit_reached"
        assert await idle.closed()
        assert (await served.get("/v1/responses")).status == 426
        assert (await busy.refuse(stream_id="x"))["code"] == "websocket_connection_limit_reached"
        go.set()
        await busy.completed()
        await busy.receive()
        assert await busy.closed()


@pytest.mark.parametrize(
    "config",
    [FrontendConfig(enable_responses_websocket=False), FrontendConfig(max_websockets=1)],
    ids=["off", "full"],
)
async def test_refused_upgrade_is_answered_with_426(served: Served, config: FrontendConfig) -> None:
    path = "/v1/responses"
    taken = await served.http.ws_connect(path) if config.enable_responses_websocket else None
    with pytest.raises(WSServerHandshakeError) as refusal:
        await served.http.ws_connect(path)
    assert refusal.value.status == 426
    plain = await served.get(path)
    assert (plain.status, plain.headers["upgrade"]) == (426, "websocket")
    assert plain.json["error"]["type"] == "invalid_request_error"
    if taken is not None:
        await taken.close()
        async with served.http.ws_connect(path):
            pass


async def test_keys_apply_to_connections_and_to_each_request(tmp_path: Path) -> None:
    config = keyed(tmp_path, "ada", "bob", key_concurrency=1)
    go = asyncio.Event()
    async with serving(FakeGateway(lambda: [[*text(0, "x")], go, [finish(1)]]), config) as served:
        with pytest.raises(WSServerHandshakeError) as refusal:
            await served.http.ws_connect("/v1/responses")
        assert refusal.value.status == 401
        headers = {"authorization": "Bearer ada"}
        async with connecting(served, headers=headers) as socket:
            await socket.send(stream_id="a")
            await socket.receive()
            await socket.send(stream_id="b")
            while (frame := await socket.receive())["type"] != "error":
                pass
            assert (frame["stream_id"], frame["status"]) == ("b", 429)
            go.set()
            await socket.completed("a")
            assert served.gateway.conversations[0].client.tenant == "ada"
            keyed(tmp_path, "bob")
            served.callers.reload(structlog.get_logger())
            assert (await socket.refuse())["status"] == 401
            assert len(served.gateway.turns) == 1


async def test_connection_keeps_a_bounded_number_of_responses(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MEMORY_BYTES", 20_000)
    async with connecting(served) as socket:
        last: dict[str, Any] = {}
        while last.get("type") != "error":
            previous = {"previous_response_id": last["response"]["id"]} if last else {}
            await socket.send(input="x" * 1000, **previous)
            last = (await socket.frames())[-1]
        assert last["error"]["code"] == "previous_response_not_found"
        await socket.complete()

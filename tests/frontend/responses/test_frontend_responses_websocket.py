"""Tests the Responses WebSocket: lanes, stored responses, errors, limits, and closing."""

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from schemas.errors import ContextOverflow, ErrorInfo, ErrorKind, Invalid, Overloaded
from schemas.events import Failed, FinishReason
from services.frontend.apis.responses.state import socket
from services.runtime.config import FrontendConfig
from tests.frontend.responses.responses_client import Client, frames_of, keyed, said
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.frontend import MODEL, FakeGateway, Served, serving


def answer() -> list[Step]:
    return [
        [
            *reasoning(0, "Hm."),
            *text(1, "Done."),
            *call(2, "look", "{}", call_id="call_1"),
            finish(3),
        ]
    ]


def create(**body: Any) -> str:
    return json.dumps(
        {"type": "response.create", "model": MODEL, "input": "hi", "store": False} | body
    )


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(answer)


@pytest.fixture
async def ws(served: Served, http: ClientSession) -> AsyncIterator[ClientWebSocketResponse]:
    async with http.ws_connect(served.url + "/v1/responses") as connection:
        yield connection


async def ask(ws: ClientWebSocketResponse, **body: Any) -> dict[str, Any]:
    """Sends a request. Returns the last frame of its answer."""
    await ws.send_str(create(**body))
    return (await frames_of(ws))[-1]


async def complete(ws: ClientWebSocketResponse, **body: Any) -> dict[str, Any]:
    """Sends a request. Returns its Response, which must be complete."""
    last = await ask(ws, **body)
    assert last["type"] == "response.completed"
    response: dict[str, Any] = last["response"]
    return response


async def receive(ws: ClientWebSocketResponse) -> dict[str, Any]:
    message = await ws.receive(60)
    assert message.type is WSMsgType.TEXT, message
    frame: dict[str, Any] = json.loads(message.data)
    return frame


async def refused(
    ws: ClientWebSocketResponse, frame: str, lane: str | None = None
) -> dict[str, Any]:
    """The error that answers a frame."""
    await ws.send_str(frame)
    answered = await receive(ws)
    assert answered["type"] == "error"
    assert answered.get("stream_id") == lane
    assert set(answered["error"]) == {"message", "type", "param", "code"}
    return {**answered["error"], "status": answered["status"]}


async def test_response_is_sent_as_its_events(
    served: Served, http: ClientSession, ws: ClientWebSocketResponse
) -> None:
    await ws.send_str(create(store=True))
    frames = await frames_of(ws)
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert [frame["type"] for frame in frames[:2]] == ["response.created", "response.in_progress"]
    client = Client(http, served)
    made = frames[-1]["response"]
    assert await client.ask("GET", f"/{made['id']}") == made
    assert await client.stream("GET", f"/{made['id']}?stream=true") == frames


async def test_codex_session_is_served(
    served: Served, http: ClientSession, ws: ClientWebSocketResponse
) -> None:
    """Warms up, asks and sends a result: each frame has only new items, and nothing is stored."""
    served.gateway.steps = lambda: [[finish(0, FinishReason.LENGTH)]]
    rules = [{"role": "developer", "content": "rules"}]
    warm = await complete(ws, generate=False, input=rules)
    served.gateway.steps = answer
    question = [{"role": "user", "content": "do"}]
    asked = await complete(ws, previous_response_id=warm["id"], input=question)
    output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    await complete(ws, previous_response_id=asked["id"], input=[output])
    warmed, first, second = (turn.conversation for turn in served.gateway.turns)
    assert warmed.sampling.max_tokens == 0
    assert said(first) == [("developer", ["rules"]), ("user", ["do"])]
    assert [role for role, _ in said(second)] == ["developer", "user", "assistant", "tool"]
    assert second.messages[:2] == first.messages
    await Client(http, served).refused("GET", f"/{asked['id']}", 404)
    async with http.ws_connect(served.url + "/v1/responses") as other:
        error = await refused(other, create(previous_response_id=asked["id"]))
        assert (error["status"], error["code"]) == (400, "previous_response_not_found")


async def test_warm_up_succeeds_with_a_template_that_needs_a_question(
    served: Served, ws: ClientWebSocketResponse
) -> None:
    served.gateway.refusal = Invalid("No user query found in messages.")
    warm = await ask(ws, generate=False, input=[{"role": "developer", "content": "rules"}])
    assert (warm["type"], warm["response"]["output"]) == ("response.completed", [])
    assert (await refused(ws, create()))["message"] == "No user query found in messages."
    served.gateway.refusal = TOO_LONG
    assert (await refused(ws, create(generate=False)))["code"] == "context_length_exceeded"
    served.gateway.refusal = None
    await complete(ws, previous_response_id=warm["response"]["id"])
    assert said(served.gateway.turns[-1].conversation)[0] == ("developer", ["rules"])


async def test_lanes_run_concurrently_and_name_their_frames(
    served: Served, ws: ClientWebSocketResponse
) -> None:
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    order = iter(["a", "b"])
    served.gateway.steps = lambda: [[*text(0, "x")], gates[next(order)], [finish(1)]]
    await ws.send_str(create(stream_id="a", input="to a"))
    await ws.send_str(create(stream_id="b", input="to b"))
    seen: dict[str, list[str]] = {"a": [], "b": []}
    while not all("response.output_text.delta" in types for types in seen.values()):
        frame = await receive(ws)
        seen[frame["stream_id"]].append(frame["type"])
    gates["b"].set()
    assert (await frames_of(ws, "b"))[-1]["type"] == "response.completed"
    gates["a"].set()
    assert (await frames_of(ws, "a"))[-1]["type"] == "response.completed"


async def test_one_lane_answers_in_order(served: Served, ws: ClientWebSocketResponse) -> None:
    for number in range(4):
        await ws.send_str(create(stream_id="lane", input=f"{number}"))
    for number in range(4):
        frames = await frames_of(ws, "lane")
        assert frames[0]["type"] == "response.created"
        assert said(served.gateway.turns[number].conversation) == [("user", [str(number)])]


async def test_excess_lanes_and_waiting_requests_are_refused(
    served: Served, ws: ClientWebSocketResponse
) -> None:
    served.gateway.hold = asyncio.Event()
    for number in range(socket.MAX_LANES):
        await ws.send_str(create(stream_id=f"lane{number}"))
    error = await refused(ws, create(stream_id="one-more"), "one-more")
    assert (error["status"], error["code"]) == (429, "websocket_stream_limit_reached")
    for _ in range(socket.MAX_WAITING):
        await ws.send_str(create(stream_id="lane0"))
    error = await refused(ws, create(stream_id="lane0"), "lane0")
    assert error["code"] == "websocket_stream_limit_reached"
    served.gateway.hold.set()
    ended = 0
    while ended < socket.MAX_LANES + socket.MAX_WAITING:
        ended += (await receive(ws))["type"] == "response.completed"
    await ws.send_str(create(stream_id="one-more"))
    assert (await frames_of(ws, "one-more"))[-1]["type"] == "response.completed"


INVALID = [
    ("{", "invalid_json"),
    ("", "invalid_json"),
    ('{"a":' * 50_000, "invalid_json"),
    ("[]", "invalid_type"),
    ('{"type": 7}', "invalid_type"),
    ("{}", "missing_required_parameter"),
    ('{"type": "response.destroy"}', "invalid_value"),
    ('{"type": "response.create", "stream_id": 7}', "invalid_stream_id"),
    ('{"type": "response.create", "stream_id": ""}', "invalid_stream_id"),
    (json.dumps({"type": "response.create", "stream_id": "x" * 257}), "invalid_stream_id"),
    (json.dumps({"type": "response.create", "model": MODEL, "input": 7}), "invalid_type"),
]


async def test_invalid_frame_is_answered_and_the_connection_stays_open(
    ws: ClientWebSocketResponse, subtests: pytest.Subtests
) -> None:
    for frame, code in INVALID:
        with subtests.test(frame[:40]):
            error = await refused(ws, frame)
            assert (error["status"], error["code"]) == (400, code)
            assert error["type"] == "invalid_request_error"
            await complete(ws)


async def test_binary_frames_and_background_requests_are_refused(
    ws: ClientWebSocketResponse,
) -> None:
    await ws.send_bytes(b"\x00\xff")
    assert (await receive(ws))["error"]["message"] == "Frames must be text."
    assert (await refused(ws, create(background=True, store=True)))["param"] == "background"


async def test_steering_is_refused_and_returns_the_input(ws: ClientWebSocketResponse) -> None:
    steer = {"previous_response_id": "resp_1", "input": [{"role": "user", "content": "no"}]}
    await ws.send_str(json.dumps({"type": "response.steer", **steer}))
    answered = await receive(ws)
    assert answered["type"] == "response.steer.failed"
    assert answered["error"]["code"] == "steering_not_supported"
    assert answered["steer"] == steer
    assert "stream_id" not in answered


async def test_steering_is_refused_on_the_lane_of_its_response(ws: ClientWebSocketResponse) -> None:
    lane = "x" * 256  # the longest that the SDK allows
    await ws.send_str(create(stream_id=lane))
    made = (await frames_of(ws, lane))[-1]["response"]["id"]
    await ws.send_str(
        json.dumps({"type": "response.steer", "previous_response_id": made, "input": "no"})
    )
    assert (await receive(ws))["stream_id"] == lane


async def test_lone_surrogate_is_mended_as_over_http(
    served: Served, ws: ClientWebSocketResponse
) -> None:
    await complete(ws, input="cut \ud83d")
    assert said(served.gateway.turns[-1].conversation) == [("user", ["cut \ufffd"])]


TOO_LONG = ContextOverflow("too long", code="context_length_exceeded")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (TOO_LONG, 400, "context_length_exceeded"),
        (Overloaded("busy", retry_after_s=3), 503, "server_is_overloaded"),
    ],
)
async def test_turn_that_cannot_start_is_an_error_frame(
    served: Served, ws: ClientWebSocketResponse, error: Any, status: int, code: str
) -> None:
    served.gateway.refusal = error
    answered = await refused(ws, create(stream_id="x"), "x")
    assert (answered["status"], answered["code"]) == (status, code)
    assert (await refused(ws, create(model="none")))["code"] == "model_not_found"
    served.gateway.refusal = None
    await complete(ws)


async def test_failure_in_mid_stream_is_a_failed_response(
    served: Served, ws: ClientWebSocketResponse
) -> None:
    served.gateway.steps = lambda: [
        [*text(0, "So")],
        [Failed(ErrorInfo(ErrorKind.ENGINE, "The engine failed."))],
    ]
    last = await ask(ws)
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
    served.gateway.steps = lambda: [[*text(0, "So far"), finish(1, FinishReason.LENGTH)]]
    cut = await ask(ws)
    assert cut["type"] == "response.incomplete"
    served.gateway.steps = answer
    await complete(ws, previous_response_id=cut["response"]["id"])


async def test_hangup_cancels_every_turn(served: Served, http: ClientSession) -> None:
    served.gateway.steps = lambda: [[*text(0, "x")], asyncio.Event()]
    async with http.ws_connect(served.url + "/v1/responses") as ws:
        for lane in ("a", "b"):
            await ws.send_str(create(stream_id=lane))
        deltas = 0
        while deltas < 2:
            deltas += (await receive(ws))["type"] == "response.output_text.delta"
    for turn in served.gateway.turns:
        await asyncio.wait_for(turn.cancel_seen.wait(), 60)
        assert turn.cancelled == ["hangup"]
    async with asyncio.timeout(60):
        while len(served.responses.connections):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "limits",
    [{"max_buffered_bytes": 65536}, {"slow_reader_timeout_s": 0.2, "max_buffered_bytes": 1 << 26}],
    ids=["much", "long"],
)
async def test_client_that_does_not_read_is_disconnected(
    http: ClientSession, limits: dict[str, Any]
) -> None:
    pieces = text(0, "x" * 16_000_000, pieces=1600)[:-1]
    flood: list[Step] = [*([piece] for piece in pieces), asyncio.Event()]
    async with (
        serving(FakeGateway(lambda: list(flood)), FrontendConfig(**limits)) as served,
        http.ws_connect(served.url + "/v1/responses", max_msg_size=0) as ws,
    ):
        await ws.send_str(create())
        async with asyncio.timeout(60):
            while not (served.gateway.turns and served.gateway.turns[0].cancelled):
                await asyncio.sleep(0)


async def test_oversized_frame_ends_the_connection_and_a_bomb_costs_no_more(
    http: ClientSession,
) -> None:
    config = FrontendConfig(max_body_bytes=100_000)
    async with serving(FakeGateway(answer), config) as served:
        url = served.url + "/v1/responses"
        for compress in (0, 15):
            async with http.ws_connect(url, compress=compress) as ws:
                assert bool(ws.compress) is bool(compress)
                frame = create(input="x" * 50_000_000)
                if compress:
                    assert len(zlib.compress(frame.encode())) < 100_000
                with contextlib.suppress(ConnectionError):  # closed before all is sent
                    await ws.send_str(frame)
                message = await ws.receive(60)
                assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR)
                if message.type is WSMsgType.CLOSE:
                    assert message.data == 1009
        async with http.ws_connect(url, compress=15) as ws:
            await complete(ws, input="x" * 50_000)


async def test_old_connection_ends_with_its_last_response(
    served: Served, http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()
    served.gateway.steps = lambda: [[*text(0, "x")], go, [finish(1)]]
    monkeypatch.setattr(socket, "MAX_AGE_S", 0.05)
    async with http.ws_connect(served.url + "/v1/responses") as ws:
        await ws.send_str(create())
        frames = [await receive(ws) for _ in range(3)]
        assert frames[0]["type"] == "response.created"
        while (error := await refused_eventually(ws)) is None:
            pass
        assert error["code"] == "websocket_connection_limit_reached"
        go.set()
        rest = await frames_of(ws)
        assert rest[-1]["type"] == "response.completed"
        assert (await receive(ws))["error"]["code"] == "websocket_connection_limit_reached"
        assert (await ws.receive(60)).type is WSMsgType.CLOSE


async def refused_eventually(ws: ClientWebSocketResponse) -> dict[str, Any] | None:
    """Sends a request in another lane; returns its error, or None if it was accepted."""
    await ws.send_str(
        json.dumps({"type": "response.create", "stream_id": "probe", "model": "none", "input": "x"})
    )
    while True:
        frame = await receive(ws)
        if frame.get("stream_id") == "probe":
            error: dict[str, Any] = frame["error"]
            return None if error["code"] == "model_not_found" else error


async def test_drain_lets_running_responses_end(served: Served, http: ClientSession) -> None:
    go = asyncio.Event()
    served.gateway.steps = lambda: [[*text(0, "x")], go, [finish(1)]]
    url = served.url + "/v1/responses"
    async with http.ws_connect(url) as busy, http.ws_connect(url) as idle:
        await busy.send_str(create())
        await receive(busy)
        await served.responses.drain()
        assert (await receive(idle))["error"]["code"] == "websocket_connection_limit_reached"
        assert (await idle.receive(60)).type is WSMsgType.CLOSE
        with pytest.raises(WSServerHandshakeError) as refusal:
            await http.ws_connect(url)
        assert refusal.value.status == 426
        go.set()
        assert (await frames_of(busy))[-1]["type"] == "response.completed"
        await receive(busy)
        assert (await busy.receive(60)).type is WSMsgType.CLOSE


@pytest.mark.parametrize(
    "config",
    [FrontendConfig(enable_responses_websocket=False), FrontendConfig(max_websockets=1)],
    ids=["off", "full"],
)
async def test_refused_upgrade_is_answered_with_426(
    http: ClientSession, config: FrontendConfig
) -> None:
    async with serving(FakeGateway(answer), config) as served:
        url = served.url + "/v1/responses"
        taken = await http.ws_connect(url) if config.enable_responses_websocket else None
        with pytest.raises(WSServerHandshakeError) as refusal:
            await http.ws_connect(url)
        assert refusal.value.status == 426
        async with http.get(url) as plain:
            assert (plain.status, plain.headers["upgrade"]) == (426, "websocket")
            assert (await plain.json())["error"]["type"] == "invalid_request_error"
        if taken is not None:
            await taken.close()
            async with http.ws_connect(url):
                pass


async def test_keys_apply_to_connections_and_their_requests(
    tmp_path: Path, http: ClientSession
) -> None:
    config = keyed(tmp_path, "ada", key_concurrency=1)
    go = asyncio.Event()
    async with serving(FakeGateway(lambda: [[*text(0, "x")], go, [finish(1)]]), config) as served:
        url = served.url + "/v1/responses"
        with pytest.raises(WSServerHandshakeError) as refusal:
            await http.ws_connect(url)
        assert refusal.value.status == 401
        async with http.ws_connect(url, headers={"authorization": "Bearer ada"}) as ws:
            await ws.send_str(create(stream_id="a"))
            await receive(ws)
            await ws.send_str(create(stream_id="b"))
            while (frame := await receive(ws))["type"] != "error":
                pass
            assert (frame["stream_id"], frame["status"]) == ("b", 429)
            go.set()
            assert (await frames_of(ws, "a"))[-1]["type"] == "response.completed"
            assert served.gateway.turns[0].conversation.client.tenant == "ada"


async def test_internal_error_is_an_error_frame_and_the_connection_stays_open(
    served: Served, ws: ClientWebSocketResponse
) -> None:
    def broken() -> list[Step]:
        raise RuntimeError("a bug")

    served.gateway.steps = broken
    error = await refused(ws, create(stream_id="x"), "x")
    assert (error["status"], error["message"]) == (500, "Internal server error")
    served.gateway.steps = answer
    await complete(ws)


async def test_connection_keeps_a_bounded_number_of_responses(
    served: Served, http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "MEMORY_BYTES", 20_000)
    async with http.ws_connect(served.url + "/v1/responses") as ws:
        previous: dict[str, Any] = {}
        for _ in range(20):
            last = await ask(ws, input="x" * 1000, **previous)
            if last["type"] == "error":
                break
            previous = {"previous_response_id": last["response"]["id"]}
        assert last["error"]["code"] == "previous_response_not_found"
        await complete(ws)

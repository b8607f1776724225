"""`/engines`: who may use it, what it takes, and what it answers."""

from pathlib import Path

import pytest

from schemas.control import EngineControl, EngineState, ModelCard
from schemas.errors import ErrorInfo, ErrorKind, Unavailable
from tests.kit.bodies import MODEL
from tests.kit.frontend import CARD, KEY, FakeGateway, guarded, serving

PAUSE = {"model": MODEL}
WEIGHTS = {"model": MODEL, "source": "step-1", "version": 7}
PATHS = ("/engines/pause", "/engines/resume", "/engines/weights")


def gateway(*states: EngineState) -> FakeGateway:
    made = FakeGateway()
    made.engine_states = list(states)
    return made


async def test_controls_reach_the_engines_and_states_come_back() -> None:
    async with serving(gateway(EngineState("w1", 3, True), EngineState("w2", 3, True))) as served:
        replies = [
            await served.post("/engines/pause", PAUSE),
            await served.post("/engines/pause", {**PAUSE, "mode": "abort"}),
            await served.post("/engines/resume", {"model": "claude-alias"}),
            await served.post("/engines/weights", WEIGHTS),
        ]
    assert [reply.status for reply in replies] == [200] * 4
    assert replies[0].json == {
        "workers": [
            {"id": "w1", "weights_version": 3, "paused": True, "error": None},
            {"id": "w2", "weights_version": 3, "paused": True, "error": None},
        ]
    }
    assert served.gateway.controls == [
        (MODEL, EngineControl("pause")),
        (MODEL, EngineControl("pause", "abort")),
        (MODEL, EngineControl("resume")),
        (MODEL, EngineControl("weights", source="step-1", version=7)),
    ]


async def test_worker_that_has_not_done_it_is_named_with_its_reason() -> None:
    error = ErrorInfo(ErrorKind.INVALID, "the x engine cannot change its weights")
    async with serving(gateway(EngineState("w1", 4), EngineState("w2", error=error))) as served:
        reply = await served.post("/engines/weights", WEIGHTS)
    text = "w1: has version 4; w2: the x engine cannot change its weights"
    assert reply.error == (502, "api_error", text)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("pause", {}, "model"),
        ("pause", {"model": MODEL, "mode": "later"}, "mode"),
        ("resume", {"model": MODEL, "mode": "keep"}, "mode"),
        ("weights", {"model": MODEL, "version": 7}, "source"),
        ("weights", {"model": MODEL, "source": "step-1"}, "version"),
        ("weights", {**WEIGHTS, "source": ""}, "source"),
        ("weights", {**WEIGHTS, "version": 0}, "version"),
        ("weights", {**WEIGHTS, "version": "2"}, "version"),
        ("weights", [], "object"),
    ],
)
async def test_body_that_is_not_valid_says_where(path: str, body: object, text: str) -> None:
    async with serving(gateway()) as served:
        status, kind, message = (await served.post(f"/engines/{path}", body)).error
    assert (status, kind) == (400, "invalid_request_error")
    assert text in message
    assert served.gateway.controls == []


async def test_unknown_model_and_adapter_are_refused() -> None:
    adapter = ModelCard("base", adapter="sql", aliases=["sql"])
    fake = FakeGateway(cards=[CARD, adapter])
    async with serving(fake) as served:
        assert (await served.post("/engines/pause", {"model": "other"})).error[0] == 404
        assert (await served.post("/engines/pause", {"model": "sql"})).error[0] == 400
        fake.refusal = Unavailable("no worker serves it")
        assert (await served.post("/engines/pause", PAUSE)).status in (503, 529)
    assert fake.controls == []


async def test_only_an_operators_key_may_use_it(tmp_path: Path) -> None:
    for options, status in (("", 403), ("operator=yes", 200), ("operator=yes models=x", 403)):
        config = guarded(tmp_path, options)
        async with serving(gateway(EngineState("w1")), config) as served:
            for path in PATHS:
                body = WEIGHTS if "weights" in path else PAUSE
                assert (await served.post(path, body)).status == 401
                assert (await served.post(path, body, headers=KEY)).status == status
        assert len(served.gateway.controls) == (3 if status == 200 else 0)

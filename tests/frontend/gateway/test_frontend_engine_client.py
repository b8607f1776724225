"""Controls of the engines of all workers of a model, over the bus."""

import asyncio
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.control import EngineControl, EngineState, Heartbeat, ModelCard
from schemas.errors import Invalid, Unavailable
from services.frontend.gateway.engine_client import EngineClient
from services.runtime.config.frontend import FrontendConfig
from services.runtime.nats.bus import Delivery
from services.runtime.process import Process
from services.worker.engines.remote.dialect import PAUSE_S, UPDATE_S
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually


class Workers:
    """Workers of the model `m` that note controls and answer when the test lets them."""

    def __init__(self, frontend: Process, process: Process) -> None:
        self.frontend = frontend
        self.process = process
        self.controls: list[tuple[str, EngineControl]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.client = EngineClient(frontend, 30.0)

    async def add(self, id: str, version: int = 0, *, answers: bool = True) -> None:
        def receive(delivery: Delivery) -> None:
            control = msgspec.json.decode(delivery.data, type=EngineControl)
            self.controls.append((id, control))
            if answers:
                self.process.spawn(self._answer(delivery, id, control), "answer")

        await self.process.subscribe(subjects.engine("m", id), receive)
        await self.process.bus.flush()
        self.beat(id, version)

    async def _answer(self, delivery: Delivery, id: str, control: EngineControl) -> None:
        await self.may_answer.wait()
        error = Invalid("too old").info if control.version == 1 else None
        state = EngineState(id, control.version, control.action == "pause", error)
        delivery.reply(msgspec.json.encode(state))

    def beat(self, id: str, version: int = 0, **more: Any) -> None:
        card = ModelCard("m", weights_version=version)
        now = asyncio.get_running_loop().time()
        self.frontend.registry.receive(Heartbeat("worker", id, models=[card], **more), now)


@pytest.fixture
async def workers(make_process: MakeProcess, request: pytest.FixtureRequest) -> Workers:
    name = request.node.name
    return Workers(
        await make_process("frontend", f"{name}-f"), await make_process("worker", f"{name}-w")
    )


async def test_every_worker_of_the_model_gets_it(workers: Workers) -> None:
    for id in ("a", "b"):
        await workers.add(id)
    control = EngineControl("weights", source="s", version=5)
    assert await workers.client.control("m", control) == [EngineState("a", 5), EngineState("b", 5)]
    assert {control for _, control in workers.controls} == {control}
    with pytest.raises(Unavailable):
        await workers.client.control("other", EngineControl("pause"))


async def test_workers_that_refuse_leave_or_do_not_exist_are_told(workers: Workers) -> None:
    await workers.add("refuses")
    await workers.add("leaves", answers=False)
    workers.beat("gone")
    control = EngineControl("weights", source="s", version=1)
    asked = asyncio.create_task(workers.client.control("m", control))
    await eventually(lambda: len(workers.controls) == 2)
    workers.beat("leaves", leaving=True)
    states = await asked
    assert [state.worker for state in states] == ["refuses", "leaves", "gone"]
    assert [state.error.message[:11] for state in states if state.error] == [
        "too old",
        "the worker ",
        "no process ",
    ]


async def test_worker_that_is_too_slow_may_still_do_it(workers: Workers) -> None:
    await workers.add("slow", answers=False)
    client = EngineClient(workers.frontend, 0.1)
    (state,) = await client.control("m", EngineControl("weights", source="s", version=5))
    assert state.error is not None
    assert state.error.message == "no answer within 0.1 s; it may still do it: send it again"
    least_s = PAUSE_S + UPDATE_S + PAUSE_S
    assert FrontendConfig().engine_control_s >= least_s, "the worker's own limits come first"


async def test_controls_have_one_order_and_need_no_client(workers: Workers) -> None:
    await workers.add("a", answers=False)
    tasks = [
        asyncio.create_task(workers.client.control("m", EngineControl(action)))
        for action in ("pause", "resume")
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await eventually(lambda: len(workers.controls) == 2)
    assert [control.action for _, control in workers.controls] == ["pause", "resume"]
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]

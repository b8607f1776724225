"""What every process does: announces itself, sends and receives heartbeats, drains, leaves."""

import asyncio

import pytest
import structlog

from schemas.control import Heartbeat
from schemas.errors import EngineFailed
from services.runtime.presence.heartbeats import Service
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess, ready
from tests.kit.waiting import LIMIT_S, eventually


class Endless(Service):
    """A service with a turn that does not end."""

    async def drain(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["done", "grace", "signal", "failure"])
async def test_a_drain_ends_when_it_is_done_or_cut_short(
    make_process: MakeProcess, how: str
) -> None:
    process = await make_process("worker", "w", drain_s=0.2 if how == "grace" else 30.0)
    process.log = structlog.get_logger()
    last_turn, draining, cut = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class LastTurn(Service):
        async def drain(self) -> None:
            draining.set()
            try:
                await last_turn.wait()
            except asyncio.CancelledError:
                cut.set()
                raise

    process.serve(LastTurn())
    with structlog.testing.capture_logs() as log:
        running = asyncio.create_task(process.run())
        await ready(process)
        process.stop()
        await draining.wait()
        if how == "done":
            last_turn.set()
        elif how == "signal":
            process.stop()
        elif how == "failure":
            process.stop("the engine died")
        await asyncio.wait({running}, timeout=LIMIT_S)
    assert isinstance(running.exception(), EngineFailed) == (how == "failure")
    assert cut.is_set() == (how != "done"), "what drains can still end its turns"
    reasons = {"grace": ["grace is over"], "signal": ["second signal"], "failure": ["failure"]}
    cuts = [line["reason"] for line in log if line["event"] == "process.drain_cut"]
    assert cuts == reasons.get(how, [])


@pytest.mark.parametrize("place", ["stop", "handler", "callback"])
async def test_failure_and_lack_of_memory_end_the_process_without_a_drain(
    place: str, make_process: MakeProcess
) -> None:
    process = await make_process("worker", "w")

    def fail(*_: object) -> None:
        raise MemoryError

    await process.subscribe("too.large", fail)
    process.serve(Endless())
    running = asyncio.create_task(process.run())
    await ready(process)
    if place == "stop":
        process.stop("the engine died")
    elif place == "handler":
        assert process.bus.publish("too.large", b"x")
    else:
        asyncio.get_running_loop().call_soon(fail)
    reason = "the engine died" if place == "stop" else "out of memory"
    with pytest.raises(EngineFailed, match=reason):
        await asyncio.wait_for(running, LIMIT_S)


async def test_a_probe_finds_out_whether_anybody_is_subscribed(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    process = await make_process("worker", "w", url=own_nats.url)
    deaf = await make_process("frontend", "f", url=own_nats.url)
    gone: list[str] = []
    await deaf.subscribe("here", lambda delivery: None)
    await deaf.bus.flush()
    process.probe("here", Heartbeat("worker", "w"), lambda: gone.append("here"))
    process.probe("away", Heartbeat("worker", "w"), lambda: gone.append("away"))
    await eventually(lambda: gone == ["away"])
    own_nats.kill()
    await eventually(lambda: process.cut_off)
    process.probe("away", Heartbeat("worker", "w"), lambda: gone.append("unknown"))
    assert gone == ["away"]

"""One turn on a server that refuses, breaks, lies, or stops it."""

from typing import Any

import pytest

from schemas.errors import ENGINE_DIED, EngineFailed, Invalid, Overloaded, TooLarge, TurnwireError
from services.worker.engine import EngineDied
from services.worker.engines.remote.event_reader import BadAnswer
from services.worker.engines.remote.vllm.dialect import VllmServer
from tests.kit.engines import begun, ids_of, request, rest, run
from tests.kit.listening import listen
from tests.kit.waiting import eventually
from tests.worker.fake_vllm_server import FakeVllmServer


async def test_broken_connection_ends_its_turn_and_not_the_engine(
    server: FakeVllmServer, engine: VllmServer
) -> None:
    deltas = await begun(engine, request(max_tokens=3000))
    server.drop()
    with pytest.raises(EngineDied, match=r"the connection to .* broke"):
        await rest(deltas)
    assert engine.healthy()
    assert len(ids_of(await run(engine, request()))) == 16


async def test_busy_server_is_asked_again(server: FakeVllmServer, engine: VllmServer) -> None:
    server.refusals = [429, 503, 502]
    assert len(ids_of(await run(engine, request()))) == 16
    assert not server.refusals


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, Overloaded),
        (503, Overloaded),
        (500, EngineDied),
        (504, EngineDied),
        (401, EngineFailed),
        (413, TooLarge),
        (400, Invalid),
    ],
)
async def test_refusal_ends_its_turn(
    server: FakeVllmServer, engine: VllmServer, status: int, kind: type[TurnwireError]
) -> None:
    """A turn with an error that says so is continued on another worker."""
    server.refusals = [status] * 100
    with pytest.raises(kind, match=f"status {status}: not now") as caught:
        await run(engine, request())
    goes_on = status in (429, 500, 503, 504)
    assert (caught.value.info.code == ENGINE_DIED) == goes_on
    assert engine.healthy()
    server.refusals.clear()
    assert await run(engine, request())


async def test_broken_answer_ends_its_turn_here_and_on_the_server(
    server: FakeVllmServer, engine: VllmServer
) -> None:
    sent = 0

    def lose_one(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        nonlocal sent
        sent += 1
        return [] if sent == 3 else events

    server.lie = lose_one
    deltas = listen(engine, request("broken", max_tokens=3000))
    with pytest.raises(BadAnswer, match="3 tokens have arrived, but it has sent 4"):
        await rest(deltas)
    await eventually(lambda: server.engine.aborted == ["generate-tokens-broken"])
    await eventually(lambda: server.aborted == ["generate-tokens-broken"])
    assert engine.healthy()


async def test_closed_turn_is_closed_on_the_server(
    server: FakeVllmServer, engine: VllmServer
) -> None:
    """The connection is closed, and the abort posted."""
    deltas = await begun(engine, request("closed", max_tokens=3000))
    await deltas.aclose()
    await eventually(lambda: server.engine.aborted == ["generate-tokens-closed"])
    await eventually(lambda: server.aborted == ["generate-tokens-closed"])
    assert engine.load().running == 0


async def test_stop_closes_turns_on_the_server(server: FakeVllmServer, engine: VllmServer) -> None:
    deltas = await begun(engine, request("stopped", max_tokens=3000))
    await engine.stop(1.0)
    assert (await rest(deltas))[-1].finish == "cancelled"
    await eventually(lambda: server.engine.aborted == ["generate-tokens-stopped"])

"""The watch over a server: one pulse at a time, what is death, and turns that get nothing more."""

import asyncio
from typing import Any

import pytest

from services.worker.engine import EngineDied
from services.worker.engines.open_turns import OpenTurns
from services.worker.engines.remote import server_watch
from services.worker.engines.remote.dialect import Pulse
from services.worker.engines.remote.http import HttpRefusal, NotListening, Unreachable
from services.worker.engines.remote.server_pause import ServerPause
from services.worker.engines.remote.server_watch import MISSED_PULSES, ServerWatch
from tests.kit.listening import Listener
from tests.kit.waiting import LIMIT_S

BROKEN = EngineDied("a connection broke")


class Server:
    """A dialect with pulses that a test decides: each an answer, or an error."""

    def __init__(self, *pulses: Any) -> None:
        self._pulses = list(pulses)
        self.requests = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def pulse(self, _: Any) -> Pulse:
        self.requests += 1
        await self.answers.wait()
        pulse = self._pulses.pop(0) if len(self._pulses) > 1 else self._pulses[0]
        if isinstance(pulse, Exception):
            raise pulse
        return Pulse(1.0, pulse)


async def watch_of(
    server: Any, silence_s: float = LIMIT_S, pause: ServerPause | None = None
) -> tuple[ServerWatch, OpenTurns]:
    turns = OpenTurns("test")
    http: Any = None
    watch = ServerWatch(http, server, turns, pause or ServerPause(), silence_s)
    await watch.begin()
    return watch, turns


async def test_all_who_look_get_the_same_pulse() -> None:
    """Answers in another order would look like a server that counts from zero again."""
    server = Server(1.0, 7.0)
    watch, turns = await watch_of(server)
    server.answers.clear()
    looks = [asyncio.create_task(watch.look(BROKEN)) for _ in range(5)]
    await asyncio.sleep(0)
    looks[0].cancel()
    server.answers.set()
    await asyncio.gather(*looks[1:])
    assert (server.requests, watch.pulse.steps, turns.death) == (2, 7.0, None)


@pytest.mark.parametrize(
    ("error", "is_dead"),
    [
        (NotListening("refused"), True),
        (HttpRefusal(503, "the engine is dead"), True),
        (HttpRefusal(429, "too many requests"), False),
        (Unreachable("no answer in time"), False),
        (TypeError("an answer that nobody expects"), False),
    ],
)
async def test_only_a_server_that_is_surely_dead_is_so_at_once(
    error: Exception, is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_watch, "PULSE_S", 0.0)
    server = Server(1.0, error)
    watch, turns = await watch_of(server)
    await watch.look(BROKEN)
    assert (turns.death is not None) == is_dead
    async with asyncio.timeout(LIMIT_S):
        await watch.run()
    assert turns.death is not None
    assert server.requests == 2 + (0 if is_dead else MISSED_PULSES)


@pytest.mark.parametrize("pulse", [0.0, 2.0])
async def test_server_that_counts_from_zero_was_started_again(pulse: float) -> None:
    watch, turns = await watch_of(Server(1.0, pulse))
    await watch.look(BROKEN)
    assert (turns.death == "the inference server was started again") == (pulse < 1.0)


async def test_turn_that_gets_nothing_more_ends_while_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn that has not begun may wait for a long prefill."""
    monkeypatch.setattr(server_watch, "PULSE_S", 0.0)
    watch, turns = await watch_of(Server(1.0), silence_s=0.1)
    listeners = [Listener() for _ in range(3)]
    for listener in listeners:
        listener.opened = True
    silent, talking, waiting = [
        watch.add(turns.open(f"turn-{number}", listener))
        for number, listener in enumerate(listeners)
    ]
    watch.record_chunk(silent)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(LIMIT_S):
        while not silent.turn.ended:
            watch.record_chunk(talking)
            await asyncio.sleep(0)
    assert isinstance(listeners[0].error, EngineDied)
    assert not talking.turn.ended
    assert not waiting.turn.ended
    assert turns.death is None
    running.cancel()


async def test_silence_of_a_pause_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "PULSE_S", 0.0)
    pause = ServerPause()
    watch, turns = await watch_of(Server(1.0), silence_s=0.1, pause=pause)
    listener = Listener()
    listener.opened = True
    silent = watch.add(turns.open("turn", listener))
    watch.record_chunk(silent)
    pause.begin()
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0.3)
    assert not silent.turn.ended
    pause.end()
    resumed_at = asyncio.get_running_loop().time()
    async with asyncio.timeout(LIMIT_S):
        while not silent.turn.ended:
            await asyncio.sleep(0)
    assert asyncio.get_running_loop().time() - resumed_at > 0.1
    running.cancel()

"""The pause of a server: who has made it, and what ends."""

import asyncio

from services.worker.engines.remote.server_pause import ServerPause
from tests.kit.waiting import LIMIT_S


async def test_pause_of_this_worker_holds_its_turns() -> None:
    pause = ServerPause()
    await pause.until_resumed()
    pause.begin()
    waiting = asyncio.create_task(pause.until_resumed())
    await asyncio.sleep(0)
    assert pause.explains_silence
    assert not waiting.done()
    pause.end()
    async with asyncio.timeout(LIMIT_S):
        await waiting
    assert not pause.explains_silence
    assert pause.ended_at > 0.0


async def test_turns_are_sent_to_a_server_that_somebody_else_has_paused() -> None:
    pause = ServerPause()
    pause.observe(paused=True)
    assert pause.explains_silence
    await pause.until_resumed()
    pause.observe(paused=False)
    assert not pause.explains_silence
    assert pause.ended_at > 0.0


async def test_pause_of_somebody_else_is_known_from_before_that_of_this_worker() -> None:
    """While this worker has paused it, the server is paused anyway."""
    for was_elsewhere in (False, True):
        pause = ServerPause()
        pause.observe(paused=was_elsewhere)
        pause.begin()
        pause.observe(paused=not was_elsewhere)
        assert pause.is_elsewhere == was_elsewhere
        pause.end()
        assert pause.explains_silence == was_elsewhere


async def test_loading_ends_also_with_an_error() -> None:
    pause = ServerPause()
    try:
        with pause.loading():
            assert pause.is_loading
            raise ValueError
    except ValueError:
        assert not pause.is_loading

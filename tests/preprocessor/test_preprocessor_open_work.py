"""Which attempts at a turn are begun, which are cancelled, and what a drain waits for."""

import asyncio

from schemas.control import Cancel
from schemas.conversation import Conversation
from schemas.requests import TurnRequest
from services.preprocessor.open_work import OpenWork
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S


def attempt(number: int, turn: str = "t") -> TurnRequest:
    return TurnRequest(turn, "f", Conversation("m", []), attempt=number)


async def test_newer_attempt_supersedes_the_present_one(make_process: MakeProcess) -> None:
    open_work = OpenWork(await make_process("preprocessor", "open-newer"))
    assert open_work.supersedes(attempt(1))
    goes_on = asyncio.Event()
    open_work.start_turn(attempt(2), _until(goes_on))
    assert [open_work.supersedes(attempt(number)) for number in (1, 2, 3)] == [False, False, True]
    open_work.start_turn(attempt(3), _until(goes_on))
    assert open_work.turns == 1
    goes_on.set()
    await asyncio.wait_for(open_work.wait_until_done(), LIMIT_S)
    assert open_work.turns == 0
    assert open_work.supersedes(attempt(1)), "no attempt is open"


async def test_cancelled_attempts_end_and_are_not_begun_later(make_process: MakeProcess) -> None:
    open_work = OpenWork(await make_process("preprocessor", "open-cancel"))
    forever = asyncio.Event()
    open_work.start_turn(attempt(2), _until(forever))
    open_work.start_turn(attempt(1, "other"), _until(forever))
    open_work.cancel(Cancel("t", 1, "hangup"))
    await asyncio.sleep(0)
    assert open_work.turns == 2, "a newer attempt goes on"
    open_work.cancel(Cancel("t", 2, "hangup"))
    open_work.cancel(Cancel("other", 1, "hangup"))
    await asyncio.wait_for(open_work.wait_until_done(), LIMIT_S)
    assert open_work.turns == 0
    assert [open_work.supersedes(attempt(number)) for number in (2, 3)] == [False, True]


async def _until(event: asyncio.Event) -> None:
    await event.wait()

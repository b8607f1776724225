"""Reads the slots of a llama-server: which turns are in them, and what they show of its life."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from services.worker.engines.remote.dialect import Pulse
from services.worker.engines.remote.http import HttpRefusal, ServerHttp, Unreachable

SLOTS_S = 1.0
"""How long `/slots`, which is answered between two steps, is waited for."""
SLOTS_RETRY_S = 0.01


class _NextToken(Struct):
    n_decoded: int = 0


class _Slot(Struct):
    is_processing: bool
    id_task: int = -1
    """Number of its last task, less than that of each later task of the server; -1: none yet."""
    n_prompt_tokens_processed: int = 0
    next_token: list[_NextToken] = []


class SlotWatch:
    """The slots of one server."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        """The slots, as of their last change."""
        self._pulse = Pulse()
        self._streams = 0
        """Open streams."""
        self._has_closed = False
        """Whether the server may still decode turns that were closed here."""

    @contextmanager
    def stream(self) -> Iterator[None]:
        """The context of an open stream."""
        self._streams += 1
        try:
            yield
        except BaseException:
            self._has_closed = True
            raise
        finally:
            self._streams -= 1

    async def wait(self, http: ServerHttp) -> None:
        """Waits until no more slots decode than there are streams, at most `SLOTS_S`: other clients
        may use the server, too."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SLOTS_S
        while self._has_closed and loop.time() < end:
            busy = sum(slot.is_processing for slot in await _read_slots(http))
            if busy <= self._streams:
                break
            await asyncio.sleep(SLOTS_RETRY_S)
        self._has_closed = False

    async def pulse(self, http: ServerHttp) -> Pulse:
        """Returns the sign of life that the slots are; the last one during a long step, and of a
        server without `--slots`."""
        slots = await _read_slots(http)
        if slots and slots != self._slots:
            started = self._pulse.started + (_last_task(slots) < _last_task(self._slots))
            self._pulse = Pulse(started, self._pulse.steps + 1)
            self._slots = slots
        return self._pulse


async def _read_slots(http: ServerHttp) -> list[_Slot]:
    """The slots; none during a long step, and of a server without `--slots`."""
    try:
        async with asyncio.timeout(SLOTS_S):
            slots: list[_Slot] = await http.json("/slots", kind=list[_Slot])
    except (TimeoutError, HttpRefusal, Unreachable):
        return []
    return slots


def _last_task(slots: list[_Slot]) -> int:
    return max((slot.id_task for slot in slots), default=-1)

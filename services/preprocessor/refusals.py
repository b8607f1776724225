"""Sends refusals to frontends."""

import asyncio

import msgspec

from schemas import subjects
from schemas.errors import ErrorInfo, TurnwireError, Unavailable
from schemas.frames import EventFrame
from schemas.requests import TurnRequest
from services.runtime.process import Process

REFUSE_TIMEOUT_S = 1.0
REFUSE_S = 60.0
"""How long a refusal is sent again: as long as a frontend waits for a prompt."""

_encode = msgspec.json.Encoder().encode


class RefusalSender:
    """Sends the refusals of one preprocessor."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def send_refusal(self, request: TurnRequest, error: ErrorInfo) -> None:
        """Sends the error to the frontend until the frontend acknowledges it, or is gone."""
        refusal = EventFrame.refusal(self._process.id, request.turn, request.attempt, error)
        frame = _encode(refusal)
        subject = subjects.events(request.frontend)
        until = asyncio.get_running_loop().time() + REFUSE_S
        while asyncio.get_running_loop().time() < until:
            try:
                await self._process.bus.request(subject, frame, REFUSE_TIMEOUT_S)
                return
            except Unavailable:
                frontend = self._process.registry.get("frontend", request.frontend)
                if frontend is None and not self._process.cut_off:
                    return
                await asyncio.sleep(REFUSE_TIMEOUT_S)  # one of the two is reconnecting
            except TurnwireError as failure:
                self._process.log.warning(
                    "preprocessor.refusal_not_delivered", turn=request.turn, error=str(failure)
                )

"""Sends an operator's controls to the engines of a model's workers."""

import asyncio

import msgspec

from schemas import subjects
from schemas.control import EngineControl, EngineState, Heartbeat
from schemas.errors import EngineFailed, TimedOut, TurnwireError, Unavailable
from services.runtime.presence.registry import cards_of
from services.runtime.process import Process

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EngineState).decode


class EngineClient:
    """Sends each control to all workers of a model at once. A worker applies one after the other,
    and goes on with it if the answer is not awaited any more."""

    def __init__(self, process: Process, timeout_s: float) -> None:
        """`timeout_s`: how long a worker may take for one control."""
        self._process = process
        self._timeout_s = timeout_s
        self._waits: dict[asyncio.Timeout, str] = {}
        """The wait for each answer → the worker."""
        process.registry.on_leave.append(self._process_left)

    async def control(self, model: str, control: EngineControl) -> list[EngineState]:
        """Returns the states of all workers of a model, each with an error if the control failed.
        Raises Unavailable if the model has no workers."""
        workers = [
            heartbeat.id
            for heartbeat in self._process.registry.living("worker")
            if cards_of([heartbeat], model)
        ]
        if not workers:
            raise Unavailable(f"no worker serves {model}")
        states = await asyncio.gather(*(self._ask(model, worker, control) for worker in workers))
        self._process.log.info(
            "frontend.engines_controlled",
            model=model,
            action=control.action,
            version=control.version,
            failed=[state.worker for state in states if state.error],
        )
        return states

    async def _ask(self, model: str, worker: str, control: EngineControl) -> EngineState:
        subject = subjects.engine(model, worker)
        wait = asyncio.timeout(None)
        self._waits[wait] = worker
        try:
            async with wait:
                bus = self._process.bus
                return _decode(await bus.request(subject, _encode(control), self._timeout_s))
        except TimeoutError:
            error: TurnwireError = Unavailable("the worker has left")
        except TimedOut:
            text = f"no answer within {self._timeout_s:g} s; it may still do it: send it again"
            error = TimedOut(text)
        except TurnwireError as failure:
            error = failure
        except msgspec.MsgspecError:
            error = EngineFailed("its answer cannot be read")
        finally:
            del self._waits[wait]
        return EngineState(worker, error=error.info)

    def _process_left(self, heartbeat: Heartbeat) -> None:
        for wait, worker in self._waits.items():
            if worker == heartbeat.id:
                wait.reschedule(0.0)

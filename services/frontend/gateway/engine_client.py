"""Sends an operator's controls to the engines of a model's workers."""

import asyncio

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.control import EngineControl, EngineState, Heartbeat
from schemas.errors import EngineFailed, TurnwireError, Unavailable
from services.runtime.process import Process
from services.runtime.registry import cards_of

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EngineState).decode


class EngineClient:
    """Applies one control after the other, each to all workers of a model at once."""

    def __init__(self, process: Process, timeout_s: float) -> None:
        """`timeout_s`: how long a worker may take for one control."""
        self._process = process
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._requests: dict[asyncio.Task[EngineState], str] = {}
        """Requests without an answer → their workers."""
        self._controls: set[asyncio.Task[list[EngineState]]] = set()
        process.registry.on_leave(self._process_left)

    async def control(self, model: str, control: EngineControl) -> list[EngineState]:
        """Returns the states of all workers of a model, each with an error if it has not done it.
        For weights without a version it is the next one after the newest. Goes on if the task that
        awaits it is cancelled. Raises Unavailable if there are no workers."""
        applying = asyncio.create_task(self._apply(model, control))
        self._controls.add(applying)
        applying.add_done_callback(self._controls.discard)
        return await asyncio.shield(applying)

    async def _apply(self, model: str, control: EngineControl) -> list[EngineState]:
        async with self._lock:
            workers = [
                heartbeat
                for heartbeat in self._process.registry.living("worker")
                if cards_of([heartbeat], model)
            ]
            if not workers:
                raise Unavailable(f"no worker serves {model}")
            if control.action == "weights" and not control.version:
                newest = max(card.weights_version for card in cards_of(workers, model))
                control = replace(control, version=newest + 1)
            states = await asyncio.gather(
                *(self._ask(model, heartbeat.id, control) for heartbeat in workers)
            )
        self._process.log.info(
            "frontend.engines_controlled",
            model=model,
            action=control.action,
            version=control.version,
            failed=[state.worker for state in states if state.error],
        )
        return states

    async def _ask(self, model: str, worker: str, control: EngineControl) -> EngineState:
        request = asyncio.create_task(self._request(model, worker, control))
        self._requests[request] = worker
        try:
            return await request
        except asyncio.CancelledError:
            return EngineState(worker, error=Unavailable("the worker has left").info)
        except TurnwireError as error:
            return EngineState(worker, error=error.info)
        except msgspec.MsgspecError:
            return EngineState(worker, error=EngineFailed("its answer cannot be read").info)
        finally:
            del self._requests[request]

    async def _request(self, model: str, worker: str, control: EngineControl) -> EngineState:
        subject = subjects.engine(model, worker)
        answer = await self._process.bus.request(subject, _encode(control), self._timeout_s)
        return _decode(answer)

    def _process_left(self, heartbeat: Heartbeat) -> None:
        for request, worker in self._requests.items():
            if worker == heartbeat.id:
                request.cancel()

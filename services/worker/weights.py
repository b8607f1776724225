"""Pauses the engine and changes its weights, as an operator asks for.

The version is a part of the salt of every prompt (`EngineRequests`), so that no prompt reuses KV
blocks of other weights, and nothing has to leave the cache.
"""

import asyncio
from pathlib import Path

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.control import EngineControl, EngineState
from schemas.errors import EngineFailed, Invalid, TurnwireError
from services.runtime.bus import Delivery
from services.runtime.process import Process
from services.worker.engine import Engine, EngineDied, UpdatableWeights
from services.worker.turn_opener import TurnOpener

_decode = msgspec.json.Decoder(EngineControl).decode


class EngineControls:
    """Answers the `EngineControl`s of one worker, one after the other."""

    def __init__(
        self,
        process: Process,
        engine: Engine,
        name: str,
        opener: TurnOpener,
        weights_dir: str | None,
    ) -> None:
        """`name`: the engine's; `opener`: opens its turns; `weights_dir`: holds all weights that
        it may load; None: it may load none."""
        self._process = process
        self._engine = engine if isinstance(engine, UpdatableWeights) else None
        self._name = name
        self._opener = opener
        self._weights_dir = weights_dir
        self._paused = False
        self._lock = asyncio.Lock()

    async def start(self, model: str) -> None:
        """Subscribes to controls of the model."""
        subject = subjects.engine(model, self._process.id)
        await self._process.subscribe(subject, self._on_control)

    def _on_control(self, delivery: Delivery) -> None:
        control = _decode(delivery.data)
        self._process.spawn(self._answer(delivery, control), f"engine {control.action}")

    async def _answer(self, delivery: Delivery, control: EngineControl) -> None:
        async with self._lock:
            state = await self._state_after(control)
        delivery.reply(msgspec.json.encode(state))

    async def _state_after(self, control: EngineControl) -> EngineState:
        state = EngineState(self._process.id)
        if self._engine is None:
            error = Invalid(f"the {self._name} engine cannot change its weights")
            return replace(state, error=error.info)
        try:
            await self._apply(control, self._engine)
        except TurnwireError as error:
            state = replace(state, error=error.info)
        except Exception as failure:
            self._process.log.exception("worker.control_failed", action=control.action)
            text = f"the {self._name} engine failed: {type(failure).__name__}: {failure}"
            state = replace(state, error=EngineFailed(text).info)
        state = replace(state, weights_version=self._engine.weights_version, paused=self._paused)
        self._report(state)
        return state

    async def _apply(self, control: EngineControl, engine: UpdatableWeights) -> None:
        """Raises as the engine, and Invalid for weights that it may not load."""
        if control.action == "pause":
            await engine.pause(abort=control.mode == "abort")
            self._paused = True
        elif control.action == "resume":
            await engine.resume()
            self._paused = False
        else:
            await self._update(control, engine)

    async def _update(self, control: EngineControl, engine: UpdatableWeights) -> None:
        version = engine.weights_version
        if control.version <= version:
            text = f"version {control.version} is not greater than {version}, which is in use"
            raise Invalid(text)
        source = allowed_source(control.source, self._weights_dir)
        resumes = not self._paused
        if resumes:
            await engine.pause(abort=False)
        try:
            await engine.update_weights(source, control.version)
            self._opener.open_waiting_again()
        except EngineDied:
            resumes = False
            raise
        finally:
            if resumes:
                await engine.resume()

    def _report(self, state: EngineState) -> None:
        """Sends the engine's state to all processes."""
        self._process.log.info(
            "worker.controlled",
            weights_version=state.weights_version,
            paused=state.paused,
            error=state.error.message if state.error else None,
        )
        heartbeats = self._process.heartbeats
        heartbeats.service.models = [
            replace(card, weights_version=state.weights_version, paused=state.paused)
            for card in heartbeats.service.models
        ]
        heartbeats.send()  # before the reply: the operator may name the next version


def allowed_source(source: str, weights_dir: str | None) -> str:
    """Returns the path of weights, with all links resolved. Raises Invalid for one that is not
    below `weights_dir`, after its links are followed. An inference server may have it elsewhere, so
    that it need not exist here."""
    if weights_dir is None:
        raise Invalid("this worker loads no other weights: it has no weights_dir")
    root = Path(weights_dir).resolve()
    path = (root / source).resolve()
    if not source or path == root or not path.is_relative_to(root):
        raise Invalid(f'source: "{source}" is not in the weights_dir of this worker')
    return str(path)

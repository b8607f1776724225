"""Pauses the engine and changes its weights, as an operator asks for.

The version is a part of the salt of every prompt (`EngineRequests`), so that no prompt reuses KV
blocks of other weights, and nothing has to leave the cache.
"""

import asyncio
from pathlib import Path

import msgspec

from schemas import subjects
from schemas.control import EngineControl, EngineState
from schemas.errors import EngineFailed, ErrorInfo, Invalid, TurnwireError
from services.runtime.nats.bus import Delivery
from services.runtime.process import Process
from services.worker.engine import Engine, EngineDied, UpdatableEngine
from services.worker.engines.open_turns import Callback

_decode = msgspec.json.Decoder(EngineControl).decode


class EngineControls:
    """Answers the `EngineControl`s of one worker, one after the other."""

    def __init__(
        self,
        process: Process,
        engine: Engine,
        name: str,
        weights_dir: str | None,
        on_change: Callback,
    ) -> None:
        """`name`: the engine's; `weights_dir`: holds all weights that it may load; None: it may
        load none; `on_change`: called between two steps, when the weights have changed."""
        self._process = process
        self._engine = engine if isinstance(engine, UpdatableEngine) else None
        self._name = name
        self._weights_dir = weights_dir
        self._on_change = on_change
        self._loaded = 0, ""
        """Version and source of the weights that were loaded last; the source of others is not
        known."""
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
        self._process.heartbeats.send()  # before the reply: the version is on the card
        delivery.reply(msgspec.json.encode(state))

    async def _state_after(self, control: EngineControl) -> EngineState:
        engine = self._engine
        worker = self._process.id
        if engine is None:
            text = f"the {self._name} engine cannot change its weights"
            return EngineState(worker, error=Invalid(text).info)
        error: ErrorInfo | None = None
        try:
            await self._apply(control, engine)
        except TurnwireError as failure:
            error = failure.info
        except Exception as failure:
            self._process.log.exception("worker.control_failed", action=control.action)
            text = f"the {self._name} engine failed: {type(failure).__name__}: {failure}"
            error = EngineFailed(text).info
        paused = self._paused or engine.is_paused_elsewhere
        self._process.log.info(
            "worker.controlled",
            weights_version=engine.weights_version,
            paused=paused,
            error=error.message if error else None,
        )
        return EngineState(worker, engine.weights_version, paused, error)

    async def _apply(self, control: EngineControl, engine: UpdatableEngine) -> None:
        """Raises the engine's errors, and Invalid for weights that it may not load."""
        if control.action == "pause":
            await self._pause(engine, abort=control.mode == "abort")
        elif control.action == "resume":
            await self._resume(engine, only_own=False)
        else:
            await self._update(control, engine)

    async def _pause(self, engine: UpdatableEngine, *, abort: bool) -> None:
        await engine.pause(abort=abort)
        self._paused = True

    async def _resume(self, engine: UpdatableEngine, *, only_own: bool) -> None:
        await engine.resume(only_own=only_own)
        self._paused = False

    async def _update(self, control: EngineControl, engine: UpdatableEngine) -> None:
        source = await asyncio.to_thread(allowed_source, control.source, self._weights_dir)
        version = engine.weights_version
        loaded, known = self._loaded
        if (control.version, source) == (version, known) and version == loaded:
            return  # it is sent again because another worker has not done it
        # The current number is loaded again where its source is not known.
        if control.version < version or control.version == version == loaded:
            text = f"version {control.version} is not greater than {version}, which is in use"
            raise Invalid(text)
        resumes = not self._paused
        await self._pause(engine, abort=False)
        try:
            await engine.update_weights(source, control.version)
            self._loaded = control.version, source
            self._on_change()
        except EngineDied:
            resumes = False
            raise
        finally:
            if resumes:
                await self._resume(engine, only_own=True)


def allowed_source(source: str, weights_dir: str | None) -> str:
    """Returns the path of weights, with all links resolved. Raises Invalid for one that is not
    below `weights_dir`, after its links are followed. An inference server may have it elsewhere, so
    that it need not exist here."""
    if weights_dir is None:
        raise Invalid("this worker loads no other weights: it has no weights_dir")
    root = Path(weights_dir).resolve()
    try:
        path = (root / source).resolve()
    except (ValueError, RuntimeError):  # a NUL, or links in a circle
        path = root
    if path == root or not path.is_relative_to(root):
        raise Invalid(f'source: "{source}" is not in the weights_dir of this worker')
    return str(path)

"""Changes the weights of a running model in place.

Open turns go on with the new weights. Their blocks in the KV cache are dropped with all others, and
computed again from their tokens: each token's log probability is that of the weights which decoded
it, also where other weights decoded the tokens before it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError

from schemas.errors import EngineFailed, Invalid
from services.worker.engine import EngineDied
from services.worker.engines.daemon_threads import in_daemon_thread
from services.worker.engines.open_turns import Callback, OpenTurns
from services.worker.engines.transformers.step_gate import StepGate

TensorPair: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A tensor of the checkpoint, and the model's own, which it replaces."""
_CHECK_S = 0.25
_NAMED = 3
"""Names of tensors in an error."""


class RunningWeights:
    """The weights of a running model, and the gate that holds its steps."""

    def __init__(self, manager: Any, turns: OpenTurns, images: Any) -> None:
        self.version = 0
        """That of the tokens which the event loop receives."""
        self._manager = manager
        self._turns = turns
        self._images = images
        self._gate = StepGate()
        self._gate.install(manager.batch_processor)

    @property
    def is_holding(self) -> bool:
        """Whether the library's thread is held between two steps."""
        return self._gate.is_holding

    async def pause(self) -> None:
        """Returns when no step runs, and none will before `resume`."""
        self._gate.close()
        await self._between_steps(lambda: None)

    def resume(self) -> None:
        """Lets the steps go on."""
        self._gate.open()

    async def update(self, source: str, version: int) -> None:
        """Loads the checkpoint of a directory. Raises as `UpdatableEngine.update_weights`."""
        model = self._manager.model
        try:
            pairs = await in_daemon_thread("transformers-read", read_weights, source, model)
        except OSError as error:
            raise EngineFailed(f"the weights of {source} cannot be read: {error}") from error

        loop = asyncio.get_running_loop()

        def change() -> None:
            with self._changing_images():
                copy_weights(pairs)
            restart_requests(self._manager.batch_processor)
            # After the deliveries of earlier steps.
            loop.call_soon_threadsafe(self._set_version, version)

        try:
            await self._between_steps(change)
        except EngineDied:
            raise
        except Exception as error:
            self._turns.die(f"its weights are only in part those of {source}: {error}")
            raise self._turns.died() from error

    def _set_version(self, version: int) -> None:
        self.version = version

    def _changing_images(self) -> Any:
        return nullcontext() if self._images is None else self._images.changing()

    async def _between_steps(self, work: Callback) -> None:
        """Runs `work` on the library's thread. Raises its error, or EngineDied if the thread has
        ended."""
        done = asyncio.wrap_future(self._gate.run(work))
        while not done.done():
            if self._turns.death is not None:
                raise self._turns.died()
            await asyncio.wait((done,), timeout=_CHECK_S)
        await done


def read_weights(source: str, model: Any) -> list[TensorPair]:
    """Reads the checkpoint in a directory as the library does when it loads the model; returns each
    tensor with the model's own that it replaces.

    Raises Invalid if they do not fit, OSError if they cannot be read.
    """
    if not any(Path(source).glob("*.safetensors")):
        raise Invalid(f"{source} has no safetensors", param="source")
    try:
        checkpoint, info = type(model).from_pretrained(
            source,
            config=model.config,
            generation_config=model.generation_config,
            dtype=torch.float32,  # another one would be the default of all threads meanwhile
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise Invalid(f"{source} is not safetensors: {error}", param="source") from None
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            names = sorted(map(str, info[problem]))[:_NAMED]
            raise Invalid(f"{source} does not fit the model: {problem} {names}", param="source")
    tensors = checkpoint.state_dict()
    return [(tensors[name], target) for name, target in model.state_dict().items()]


def copy_weights(pairs: Sequence[TensorPair]) -> None:
    """Overwrites the model's own tensors. A step may still run on the device."""
    is_asynchronous = any(target.device.type != "cpu" for _, target in pairs)
    if is_asynchronous:
        torch.accelerator.synchronize()
    with torch.no_grad():
        for tensor, target in pairs:
            target.copy_(tensor)
    if is_asynchronous:
        torch.accelerator.synchronize()


def restart_requests(processor: Any) -> None:
    """Empties the KV cache. Requests that were active begin again before those that wait, with
    their output as part of the prompt, as the library does when its cache is full."""
    scheduler = processor.scheduler
    offloaded = [state for state in scheduler.waiting_requests.values() if state.is_cpu_offloaded]
    processor.offloading_manager.free_all_waiting_cpu_caches()
    for state in offloaded:
        scheduler.waiting_requests[state.request_id] = state.create_equivalent_initial_request()
    for state in reversed(list(scheduler.active_requests.values())):
        key = state.request_id
        scheduler.waiting_requests[key] = state.create_equivalent_initial_request()
        scheduler.waiting_requests_order.appendleft(key)
        state._status = type(state._status).FINISHED  # a step that still runs is ignored
        scheduler.finish_request(key)

    cache = scheduler.cache
    if hasattr(cache, "evict_cached_blocks"):
        cache.evict_cached_blocks()
        return
    # Older releases empty blocks when others need them.
    blocks = cache._block_manager
    blocks.has_enough_free_blocks(blocks.num_free_blocks)

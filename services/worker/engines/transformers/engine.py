"""The transformers engine: continuous batching with prefix sharing for causal LMs with full
attention, on CPU or GPU.

The library runs the model on its own thread and calls back on the event loop, once per token and
turn. It was built for batches and lacks much that a server needs; comments name what would happen
without the code here. Two limits remain: each callback carries a copy of all tokens so far (at
4,000 tokens a stream's speed has dropped by a third), and the library refuses hybrid models
(Qwen3-Next, Nemotron-H) at the start.

On a shared CPU, OpenMP threads that spin while they wait make decoding 10 to 30 times slower. They
sleep here, unless the environment sets it; `OMP_NUM_THREADS=1` is the safe setting in containers.
"""

from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from schemas.control import Load
from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import (
    EngineInfo,
    EngineRequest,
    Sink,
    UpdatableEngine,
    load_failure,
)
from services.worker.engines.daemon_threads import in_daemon_thread, run_for
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.engines.transformers.adapter import parse_args
from services.worker.engines.transformers.library_requests import THREAD_ENDED, LibraryRequests
from services.worker.engines.transformers.loader import LoadedModel, explain, load_model
from services.worker.engines.trial import decode_trial

_SHARE_BLOCKS = ("mark_complete_blocks", "mark_shareable_blocks_as_complete")
"""The cache's method that lets others share the blocks of a step, in newer and older releases."""


class TransformersEngine(UpdatableEngine):
    """An engine over `ContinuousBatchingManager`."""

    explain = staticmethod(explain)

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._args = parse_args(config.engine_args)
        self._turns = OpenTurns("transformers")
        self._stopping = False
        self._batches = -1
        """The number of steps that the library has run."""
        self._manager: Any = None
        self._weights: Any = None
        """`weights.RunningWeights`."""
        self._requests: LibraryRequests
        self._info: EngineInfo

    @override
    async def start(self) -> EngineInfo:
        """Loads the model, starts the library's thread and decodes one token.

        Raises EngineFailed, with the library's message, if any of it fails.
        """
        # The library's thread would not be a daemon, and would keep a process with an exception
        # running forever. Threads inherit this from the thread that starts them.
        try:
            loaded = await in_daemon_thread("transformers-load", self._load)
        except Invalid:
            raise
        except Exception as error:
            raise load_failure(self._config.model, error) from error
        self._manager = loaded.manager
        self._info = loaded.info
        from services.worker.engines.transformers.weights import RunningWeights

        self._weights = RunningWeights(loaded.manager, self._turns, loaded.images)
        self._requests = LibraryRequests(loaded, self._args, self._turns, self._weights)
        self._turns.watch(self._config.watchdog_s, self._check)
        try:
            await decode_trial(self, EngineRequest("start", [0], Sampling(max_tokens=1), []))
        except EngineFailed:
            await self.stop(1.0)
            raise
        return self._info

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        return self._requests.open(request, sink)

    @override
    def load(self) -> Load:
        used = None
        if self._info.kv_tokens:
            used = min(1.0, self._requests.tokens / self._info.kv_tokens)
        return self._turns.load(self._config.slots, self._config.queue_limit, used)

    @override
    def death(self) -> str | None:
        if self._turns.death is None and self._manager is not None and not self._stopping:
            # Not `fatal_error`: it stays None after some of the library's deaths.
            return None if self._manager.is_running() else THREAD_ENDED
        return self._turns.death

    @override
    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._turns.stop()
        if self._manager is not None:
            self._requests.stop()
            self._weights.resume()  # a paused thread would not end
            # A soft stop would first decode every open turn to its end.
            stop = self._manager.stop
            await run_for(
                grace_s, "transformers-stop", stop, block=True, timeout=grace_s, hard_stop=True
            )

    @property
    @override
    def weights_version(self) -> int:
        return int(self._weights.version)

    @override
    async def pause(self, *, abort: bool) -> None:
        await self._weights.pause()
        if abort:
            self._turns.abort("the engine was paused")

    @override
    async def resume(self, *, only_own: bool = False) -> None:
        self._weights.resume()  # no other process can pause it

    @override
    async def update_weights(self, source: str, version: int) -> None:
        await self._weights.update(source, version)

    def _check(self) -> str | None:
        """Notes steps, which the library does not report. Returns a reason if its thread has ended
        without a report."""
        if self._batches != self._manager.current_batch:
            self._batches = self._manager.current_batch
            self._turns.stepped()
        elif self._weights.is_holding:
            self._turns.stepped()  # a pause is not a hang
        return None if self._manager.is_running() else THREAD_ENDED

    def _load(self) -> LoadedModel:
        """Loads the model and starts the generation thread. Runs on a thread of its own."""
        loaded = load_model(self._config, self._args)
        manager = loaded.manager
        _share_last_blocks(manager.batch_processor)
        manager.current_batch = 0
        manager.start()
        return loaded


def _share_last_blocks(processor: Any) -> None:
    """Lets later prompts share the blocks that a request's last step fills.

    The library shares the blocks of a step only of requests that go on. A turn that ends with its
    first token, as each prefill without output does, would leave the last chunk of its prompt to be
    computed again.
    """
    cache = processor.cache
    scheduler = processor.scheduler
    name = next(name for name in _SHARE_BLOCKS if hasattr(cache, name))
    share = getattr(cache, name)

    def share_last(state: Any, filled: Any) -> None:
        is_active = scheduler.active_requests.get(state.request_id) is state
        if filled and is_active:  # else its blocks are already freed
            shared = SimpleNamespace(
                status=None,
                request_id=state.request_id,
                initial_tokens=state.initial_tokens,
                generated_tokens=state.generated_tokens,
            )
            share(shared, filled)

    setattr(cache, name, share_last)
